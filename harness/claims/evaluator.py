"""The names that the formulas of claims may use: cards, experiments, replays, predictions and records.

A formula is a Python expression over these names, such as `card('reddit').expected.n` or
`epoch('plexus-figure-8', dataset='reddit', ranks=32, strategy='bns-gcn') / epoch(...)`. It has the names of
`Evaluator.names` and no others.

Runs are those of an experiment's `published` part, named by what they have in common: `strategy`, `dataset`, `ranks`,
any other short name of KEYS, or a parameter of the strategy. Where several grids are left, the fastest counts, as in a
figure. Where a paper leaves a setting open, its experiment has a run for each choice, and the value is an interval over
all of them. If the run was measured, and its record is among the collected tables, the measured value counts.
"""

import csv
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from math import ceil, log2, prod, sqrt
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from harness.claims.bands import Band, EpochTime, EpochTimes, NotHereError
from harness.claims.claims import read_claims
from harness.errors import UserError
from harness.experiment.defaults import make_spec, nested
from harness.experiment.expand import expand, load_experiment
from harness.experiment.known_graph import facts_of_card, on_twins
from harness.experiment.scales import at_scale
from harness.ledger import MOVING, SAMPLING, AxisName
from harness.predict.predicted_record import recorded_prediction
from harness.predict.prediction import STEPS, predict
from harness.predict.pricing import bandwidth, placed, spmm_seconds
from harness.predict.twins import predict_from_twins
from harness.registry import load_strategy
from harness.replay import Replayed, replay
from harness.results.parquet import read_collected
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.spec import Spec, grid_text
from harness.store.catalog import load_card
from harness.store.dataset_card import DatasetCard
from harness.strategy import Facts, Ready, Strategy, admit

EXPERIMENTS = Path("workflows") / "experiments"

KEYS = {
    "strategy": "strategy.name",
    "dataset": "dataset.name",
    "partition": "dataset.partition",
    "permutation": "dataset.permutation",
    "machine": "machine.name",
    "kind": "model.kind",
    "layers": "model.layers",
    "hidden": "model.hidden",
    "heads": "model.heads",
    "batch": "training.batch",
    "epochs": "training.epochs",
    "warmup": "training.warmup",
    "target": "training.target",
    "features": "training.features",
    "ranks": "ranks",
    "launch": "launch",
    "protocol": "protocol",
    "utilisation_ms": "measure.utilisation_ms",
}
"""The keys of a spec by short names."""
KEY = ("op", "tensor", "direction", "phase", "layer")
"""The parts of a ledger's key by which work is counted."""
OPEN = ("model.hidden", "training.batch")
"""The settings that papers leave open."""
PERLMUTTER = {"perlmutter", "perlmutter-80gb"}
SIX = ("reddit", "ogbn-products", "isolate-3-8m", "products-14m", "europe-osm", "ogbn-papers100m")
"""The datasets of Plexus."""
GB = 1 << 30


class RankWork(NamedTuple):
    """What one rank does in an epoch, by a replay."""

    words: float
    """Words received."""
    payload: float
    calls: int
    flops: float
    bytes: float
    peak_bytes: int
    held: Mapping[str, int]
    """The bytes that the rank holds from step to step, by tensor."""


class Evaluator:
    """The names of formulas, for the cards and experiments under a root."""

    def __init__(
        self,
        root: Path,
        tables: Path | None = None,
        *,
        predictions: Path | None = None,
        twins: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        """`tables` are the collected tables, if there are any; `twins` allows twins to be built, in minutes.

        `predictions` is a folder of recorded predictions, which are not made again.
        """
        self.root, self.predictions, self.twins, self.say = root, predictions, twins, say
        self._measured = _measured_runs(tables) if tables and (tables / "runs.parquet").is_file() else {}
        self._predict = lru_cache(None)(self._predicted)
        self._runs = lru_cache(None)(self._published_runs)

    def value(self, formula: str) -> Any:
        """The value of a formula."""
        try:
            return eval(formula, {"__builtins__": {}, **self.names})
        except (NameError, SyntaxError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise UserError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def names(self) -> dict[str, Any]:
        """Everything that a formula may name."""
        plain = (
            *(abs, all, any, bool, ceil, dict, float, int, len, list, log2, max, mean, median, min),
            *(prod, range, round, set, sorted, sqrt, str, sum, zip),
        )
        ours = (
            *(
                self.card,
                self.facts,
                self.width,
                self.zero_share,
                self.machine,
                self.ring_gbs,
                self.product_seconds,
            ),
            *(self.printed, self.rows, self.proved_by, self.published, self.widths, self.experiment),
            *(self.work, self.steps, self.epoch, self.line, self.bars),
            *(self.evaluation, self.accuracy, self.seconds_to_target),
            *(only, shape, falls, largest, ring),
        )
        constants = {"SIX": SIX, "PERLMUTTER": PERLMUTTER, "GB": GB, "MOVING": MOVING, "SAMPLING": SAMPLING}
        return {**{each.__name__: each for each in (*plain, *ours)}, **constants}

    # Cards.

    def card(self, name: str) -> DatasetCard:
        """The card of a dataset."""
        return load_card(self.root, name)

    def machine(self, name: str) -> MachineCard:
        """The card of a machine."""
        return load_machine_card(self.root, name)

    def facts(self, name: str) -> Facts:
        """The sizes of a dataset as its card expects them."""
        return facts_of_card(self.card(name))

    def width(self, name: str) -> int:
        """The width of a dataset's features."""
        return self.facts(name).features

    def zero_share(self, name: str) -> float:
        """The share of zeros in a dataset's matrix."""
        facts = self.facts(name)
        return 1 - facts.nonzeros / facts.vertices**2

    def product_seconds(self, machine: str, dataset: str, grid: str) -> Band:
        """The first sparse product of Plexus on a grid, by a machine's terms of products."""
        rates, sizes = self.machine(machine).rates, [int(size) for size in grid.split("x")]
        assert rates
        replayed = self._replayed("plexus", dataset, prod(sizes), grid)
        first = next(product for event in replayed.events for product in event.products if product.nonzeros)
        seconds = spmm_seconds(first, rates.spmm)
        return Band(seconds, seconds / rates.spmm.within, seconds * rates.spmm.within)

    def ring_gbs(self, machine: str, rings: int) -> float:
        """The bandwidth of each of some rings of eight ranks side by side."""
        links = self.machine(machine).links
        assert links
        return bandwidth(links, placed({AxisName.X: 8, AxisName.Y: rings}, "x", links))

    def rows(self, path: str) -> list[dict[str, str]]:
        """The rows of a file of this project."""
        with (self.root / path).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def proved_by(self, test: str) -> bool:
        """True if the project has this test, FILE::NAME or a whole file: no change that fails it is landed."""
        path, _, name = test.partition("::")
        file = self.root / path
        if not file.is_file() or f"def {name}" not in file.read_text(encoding="utf-8"):
            raise UserError(f"there is no test {test}")
        return True

    def printed(self, claim: str) -> float:
        """The number that another claim prints."""
        for claims in read_claims(self.root).values():
            for each in claims:
                if each.id == claim and each.number is not None:
                    return each.number
        raise UserError(f"there is no claim {claim} with a number")

    # Experiments.

    def experiment(self, name: str, *, any_grid: bool = False, **which: Any) -> list[Spec]:
        """The runs of an experiment's published part that have these settings; a set stands for any of its values.

        With `any_grid`, best grids are not looked for: it does not matter which these are, nor are they asked for.
        """
        machine = which.get("machine")
        any_grid = any_grid and "grid" not in which
        every = self._runs(name, machine if isinstance(machine, str) else None, any_grid)
        runs = [spec for spec in every if all(_has(spec, key, value) for key, value in which.items())]
        if not runs:
            raise UserError(f"{name} has no published run with {which}")
        return runs

    def published(self, name: str, key: str, **which: Any) -> Any:
        """The values of a key among these runs, ascending; the value itself where all have the same."""
        runs = self.experiment(name, any_grid=key != "grid", **which)
        values = list(dict.fromkeys(_setting(spec, key) for spec in runs))
        return values[0] if len(values) == 1 else sorted(values)

    def widths(self, name: str) -> str:
        """The least and the largest width of features among the runs of an experiment."""
        widths = sorted({self.width(spec.dataset.name) for spec in self.experiment(name, any_grid=True)})
        return f"{widths[0]}-{widths[-1]}"

    def _published_runs(self, name: str, machine: str | None, any_grid: bool) -> list[Spec]:
        published = at_scale(
            self.root, load_experiment(self.root / EXPERIMENTS / f"{name}.yaml"), "published"
        )
        return expand(self.root, published, only=machine, any_grid=any_grid)

    # Replays.

    def work(
        self, strategy: str, dataset: str, ranks: int, grid: str = "", *, rank: int = 0, **settings: Any
    ) -> RankWork:
        """An epoch of one rank, or its first steps, of a graph of which no more is known than its card tells.

        With `op`, `tensor`, `direction`, `phase` or `layer`, only what has this key counts.
        """
        only = {key: settings.pop(key) for key in KEY if key in settings}
        replayed = self._replayed(strategy, dataset, ranks, grid, rank, **settings)
        some = [
            amounts
            for key, amounts in replayed.entries.items()
            if all(str(getattr(key, name)) == str(value) for name, value in only.items())
        ]
        return RankWork(
            sum(each.words_received for each in some),
            sum(each.words_payload for each in some),
            sum(each.calls for each in some),
            sum(each.flops for each in some),
            sum(each.bytes for each in some),
            replayed.peak_bytes,
            {str(name): size for name, size in replayed.persistent_bytes.items()},
        )

    def steps(self, strategy: str, dataset: str, ranks: int, grid: str = "", **settings: Any) -> int:
        """The training steps of an epoch."""
        return self._admitted(strategy, dataset, ranks, grid, **settings).steps

    def _replayed(
        self, strategy: str, dataset: str, ranks: int, grid: str = "", rank: int = 0, **settings: Any
    ) -> Replayed:
        return replay(self._admitted(strategy, dataset, ranks, grid, **settings), rank, steps=STEPS)

    def _admitted(self, strategy: str, dataset: str, ranks: int, grid: str, **settings: Any) -> Strategy:
        asked = {"strategy.name": strategy, "dataset.name": dataset, "ranks": ranks, **_dotted(settings)}
        spec = make_spec(self.root, nested({**asked, **({"grid": grid} if grid else {})}), "a claim")
        return admit(load_strategy(strategy), spec, self.facts(dataset))

    # EpochTimes, predicted or measured.

    def epoch(self, name: str, twins: str = "", on: str = "", **which: Any) -> EpochTimes:
        """The epoch of the runs of an experiment that have these settings, on the fastest grid.

        `twins` are three scales, as `1/32,1/16,1/8`, for a strategy whose sizes depend on the edges. `on` is another
        card of the same machine.
        """
        return self._fastest(name, which, lambda spec: self._epoch(spec, twins, on))

    def evaluation(self, name: str, **which: Any) -> EpochTimes:
        """One evaluation of the whole graph in the runs of an experiment that have these settings."""
        return self._fastest(name, which, self._evaluation)

    def _fastest(
        self, name: str, which: Mapping[str, Any], time_of: Callable[[Spec], EpochTime]
    ) -> EpochTimes:
        by_setting = EpochTimes()
        for spec in self.experiment(name, **which):
            key, found = tuple(_at(spec, path) for path in OPEN), time_of(spec)
            if key not in by_setting or found.seconds < by_setting[key].seconds:
                by_setting[key] = found
        return by_setting

    def line(self, name: str, twins: str = "", on: str = "", **which: Any) -> dict[int, EpochTimes]:
        """The epochs of a line of a figure, by number of ranks."""
        counts = sorted({spec.ranks for spec in self.experiment(name, any_grid=True, **which)})
        return {ranks: self.epoch(name, twins, on, ranks=ranks, **which) for ranks in counts}

    def bars(self, name: str, **which: Any) -> Band:
        """The longest bar of a figure."""
        strategies = {spec.strategy.name for spec in self.experiment(name, any_grid=True, **which)}
        lines = [self.line(name, strategy=strategy, **which) for strategy in sorted(strategies)]
        return max(
            (epochs.seconds for each in lines for epochs in each.values()), key=lambda band: band.value
        )

    def _epoch(self, spec: Spec, twins: str, on: str) -> EpochTime:
        if spec.run_id in self._measured:
            return EpochTime(float(self._measured[spec.run_id]["epoch_seconds_median"]))
        return self._predict(spec.model_copy(update={"launch": 0}).model_dump_json(), twins, on)

    def _evaluation(self, spec: Spec) -> EpochTime:
        if spec.run_id in self._measured:
            return EpochTime(float(self._measured[spec.run_id]["evaluation_seconds"]))
        card = load_machine_card(self.root, spec.machine.name)
        try:
            predicted = predict(Ready(self._strategy_of(spec)), card, evaluation=True)
        except UserError as refusal:
            raise NotHereError(str(refusal)) from refusal
        return EpochTime(predicted.seconds.value, card, predicted)

    def _strategy_of(self, spec: Spec) -> Strategy:
        return admit(load_strategy(spec.strategy.name), spec, self.facts(spec.dataset.name))

    def _predicted(self, document: str, twins: str, on: str) -> EpochTime:
        spec = Spec.model_validate_json(document)
        card = load_machine_card(self.root, on or spec.machine.name)
        strategy = self._strategy_of(spec)
        if not twins:
            known = (
                recorded_prediction(self.predictions, spec, strategy.facts, card)
                if self.predictions
                else None
            )
            predicted = known or predict(Ready(strategy), card)
        elif not self.twins:
            raise NotHereError(
                "its sizes depend on the edges: `harness claims --twins` builds twins of the graph, in minutes"
            )
        else:
            predicted = predict_from_twins(
                strategy, card, on_twins(self.root, strategy, twins.split(","), self.say)
            )
        return EpochTime(predicted.seconds.value, card, predicted)

    # Records.

    def measured(self, name: str, column: str, **which: Any) -> float:
        """The median of a column over the records of these runs."""
        specs = self.experiment(name, **which)
        found = [self._measured[spec.run_id][column] for spec in specs if spec.run_id in self._measured]
        if not found:
            first = specs[0]
            raise NotHereError(
                f"it takes a run of {name} ({first.strategy.name} on {first.dataset.name}, {first.ranks} ranks of "
                f"{first.machine.name}), and none is among the collected tables"
            )
        return float(median(found))

    def accuracy(self, name: str, **which: Any) -> float:
        """The last test accuracy of these runs, in percent."""
        return 100 * self.measured(name, "accuracy_test", **which)

    def seconds_to_target(self, name: str, **which: Any) -> float:
        """The seconds of training until these runs reached their target."""
        return self.measured(name, "seconds_to_target", **which)


def _measured_runs(tables: Path) -> dict[str, dict[str, Any]]:
    """The measured runs among the collected ones that succeeded, by run id."""
    runs = read_collected(tables, "runs")
    chosen = runs[(runs.status == "ok") & (runs.source == "measured")].set_index("run_id")
    return {str(run_id): dict(row) for run_id, row in chosen.iterrows()}


def falls(epochs: Mapping[int, EpochTimes]) -> bool:
    """True if every epoch of a line is shorter than the one before."""
    times = [epochs[ranks].first.seconds for ranks in sorted(epochs)]
    return times == sorted(times, reverse=True)


def largest(epochs: Mapping[int, EpochTimes], counts: Iterable[int]) -> Band:
    """The longest epoch of a line at these numbers of ranks."""
    return max(epochs[ranks].seconds for ranks in counts)


def only(values: Iterable[Any]) -> Any:
    """The value that all have; all different values otherwise."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else different


def shape(grid: str) -> str:
    """The sizes of a grid without a data-parallel axis of one group, as 2x2x2."""
    return "x".join(
        part.lstrip("abcdefghijklmnopqrstuvwxyz") for part in grid.split(" x ") if not part.startswith("d")
    )


def ring(ranks: int) -> float:
    """The words that a member of a ring receives in an all-reduce of one word."""
    return 2 * (ranks - 1) / ranks


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {KEYS.get(key, f"strategy.params.{key}"): value for key, value in settings.items()}


def _has(spec: Spec, key: str, value: Any) -> bool:
    setting = _setting(spec, key)
    return setting in value if isinstance(value, set) else bool(setting == value)


def _setting(spec: Spec, key: str) -> Any:
    """The value of a key by its short name, or a parameter of the strategy; None for another strategy's parameter."""
    if key == "grid":
        return grid_text(spec.grid)
    return _at(spec, KEYS[key]) if key in KEYS else _plain(spec.strategy.params.get(key))


def _at(spec: Spec, path: str) -> Any:
    value: Any = spec
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _plain(value: Any) -> Any:
    """A list of a document as a tuple, which can be compared and counted."""
    return tuple(value) if isinstance(value, list) else value
