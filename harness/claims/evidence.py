"""What formulas compute from: dataset and machine cards, experiments, replays, predictions and records.

Runs are selected from an experiment's `published` part. If a selection has several grids, the fastest counts, as in a
figure. Where a paper leaves a setting open, its experiment has a run for each choice, and the value is a range over
all of them. A measured run counts instead of its prediction if its record is among the collected tables.
"""

import csv
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, lru_cache
from itertools import chain, product
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar, Unpack, cast

from harness.base.errors import UserError
from harness.base.progress import Log
from harness.claims.arguments import EXPERIMENTS
from harness.claims.estimates import EpochTime, EpochTimes, UntestableClaim
from harness.claims.selection import Selection, Settings, TrainingSettings, get_setting, with_dotted_keys
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.experiment.known_graph import admit_on_twins, facts_of_card
from harness.experiment.requests import make_spec, nest_settings
from harness.experiment.scales import select_scale
from harness.graph.cards.catalog import list_cards, load_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.store.building import build_store
from harness.graph.store.location import locate_store
from harness.graph.store.manifest import Cut, read_manifest
from harness.ledger import Key
from harness.prediction.epoch import REPLAYED_STEPS, Prediction, predict
from harness.prediction.replay import ReplayedRank, replay
from harness.prediction.saved_predictions import read_predictions
from harness.prediction.scaled_sizes import predict_from_scaled_sizes
from harness.prediction.twins import predict_from_twins
from harness.registry import load_strategy
from harness.results.parquet import read_collected
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import (
    FittedResult,
    Links,
    MachineCard,
    Rates,
    list_machines,
    load_machine_card,
)
from harness.spec.spec import Spec
from harness.strategy import Facts, Ready, Strategy, admit

CLAIMS = Path("workflows") / "claims"
MANY_BINS = 10_000
"""The number of bins of all ranks from which an epoch is extrapolated from smaller graphs."""
OPEN_SETTINGS = ("strategy", "hidden", "batch", "precompute")
"""The settings that papers leave open, by their short names. The machine card may be open too."""

BUILD_TWINS = "its sizes depend on the edges: `harness claims --twins` builds twins of the graph, in minutes"

Consulted = Literal["replay", "prediction", "record", "twin"]
T = TypeVar("T")


class RankWork(NamedTuple):
    """The work of one rank in an epoch, or a part of it."""

    elements: float
    """The elements received."""
    payload: float
    calls: int
    flops: float
    bytes: int
    """The bytes sent."""


class RankReplay(NamedTuple):
    """A replay of one rank."""

    replayed: ReplayedRank

    @property
    def peak_bytes(self) -> int:
        return self.replayed.peak_bytes

    @property
    def held_bytes(self) -> dict[str, int]:
        """The bytes that the rank holds from step to step, by tensor."""
        return {str(name): size for name, size in self.replayed.persistent_bytes.items()}

    def count_work(
        self,
        *,
        layer: int | None = None,
        op: str = "",
        tensors: Collection[str] = (),
        direction: str = "",
        phase: str = "",
    ) -> RankWork:
        """Return the work under the ledger keys that have these parts; a part that is left out may be any."""
        parts = {"op": op, "direction": direction, "phase": phase}
        given = {name: part for name, part in parts.items() if part}

        def is_selected(key: Key) -> bool:
            has_parts = all(getattr(key, name) == part for name, part in given.items())
            return has_parts and layer in (None, key.layer) and (not tensors or key.tensor in tensors)

        selected = [amounts for key, amounts in self.replayed.entries.items() if is_selected(key)]
        return RankWork(
            sum(amounts.elements_received for amounts in selected),
            sum(amounts.elements_payload for amounts in selected),
            sum(amounts.calls for amounts in selected),
            sum(amounts.flops for amounts in selected),
            sum(amounts.bytes for amounts in selected),
        )


class Evidence:
    """The cards, experiments and records of a project, and what is computed from them."""

    has_open_units = True
    """Whether a value is a range over the units that a paper leaves open. Figures show epochs, which have none."""

    def __init__(
        self,
        root: Path,
        tables: Path | None = None,
        *,
        predictions: Path | None = None,
        quick: bool = False,
        twins: bool = False,
        log: Log = print,
    ) -> None:
        """`tables` is a folder of collected tables; `twins` allows twins to be built, which takes minutes.

        `predictions` is a folder of saved predictions, which are not made again; with `quick`, no others are made.
        """
        self.root, self.quick, self.twins, self.log = root, quick, twins, log
        self.saved = read_predictions(predictions, root)
        self._measured = _read_measured(tables) if tables and (tables / "runs.parquet").is_file() else {}
        self.consulted: set[Consulted] = set()
        """What the last formula has computed from, besides cards, experiments and printed numbers."""
        self._expand_once = lru_cache(None)(self._expand)

    # Cards and files.

    def load_card(self, dataset: str) -> DatasetCard:
        """Load the card of a dataset."""
        return load_card(self.root, dataset)

    def load_facts(self, dataset: str) -> Facts:
        """Load the sizes that the card of a dataset expects."""
        return facts_of_card(self.load_card(dataset), self.root)

    def load_machine(self, machine: str) -> MachineCard:
        """Load the card of a machine."""
        return load_machine_card(self.root, machine)

    def load_links(self, machine: str) -> Links:
        """Load the network of a machine's card."""
        return require(self.load_machine(machine).links, f"links (machine {machine})")

    def load_rates(self, machine: str) -> Rates:
        """Load the speed of a machine's devices."""
        return require(self.load_machine(machine).rates, f"rates (machine {machine})")

    @cached_property
    def fitted_results(self) -> dict[str, list[FittedResult]]:
        """The results of papers that supplied constants, by the machine card that names them."""
        cards = {name: self.load_machine(name) for name in list_machines(self.root)}
        return {name: list(card.fitted_to) for name, card in cards.items() if card.fitted_to}

    @cached_property
    def fitted_graphs(self) -> dict[str, tuple[str, ...]]:
        """The claims whose printed cut supplied the communities of twins, by the dataset card that names them."""
        cards = {name: self.load_card(name) for name in list_cards(self.root)}
        return {name: card.communities.fitted_to for name, card in cards.items() if card.communities}

    def read_rows(self, path: str) -> list[dict[str, str]]:
        """Read the rows of a CSV file of this project."""
        with (self.root / path).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def read_printed(self, claim: str) -> float:
        """Return the number that another claim prints."""
        if claim not in self._printed_numbers:
            raise UserError(f"there is no claim {claim} with a number")
        return self._printed_numbers[claim]

    @cached_property
    def _printed_numbers(self) -> dict[str, float]:
        return read_printed_numbers(self.root)

    # Experiments.

    def list_runs(self, runs: Selection, *, any_grid: bool = False) -> list[Spec]:
        """List the selected runs of the experiment's published part.

        With `any_grid`, best grids are not searched for: a caller that does not need them saves their predictions.
        """
        machine = runs.settings.get("machine")
        only = machine if isinstance(machine, str) else None
        found = chain.from_iterable(self._expand_once(name, only, any_grid) for name in runs.experiments)
        selected = [spec for spec in found if runs.accepts(spec)]
        if not selected:
            raise UserError(f"there is no published run of {runs}")
        return selected

    def list_values(self, runs: Selection, key: str) -> list[Any]:
        """List the different values of a setting among the selected runs, ascending."""
        specs = self.list_runs(runs, any_grid=key != "grid")
        return sorted(dict.fromkeys(get_setting(spec, key) for spec in specs))

    def list_points(self, runs: Selection, *keys: str) -> list[Settings]:
        """List the different combinations of some settings among the selected runs, in the order of the experiment."""
        found = (
            tuple(get_setting(spec, key) for key in keys) for spec in self.list_runs(runs, any_grid=True)
        )
        return [cast(Settings, dict(zip(keys, values, strict=True))) for values in dict.fromkeys(found)]

    def _expand(self, experiment: str, machine: str | None, any_grid: bool) -> list[Spec]:
        path = self.root / EXPERIMENTS / f"{experiment}.yaml"
        published = select_scale(self.root, load_experiment(path), "published")
        grids = self.saved.best_grids.setdefault(experiment, {})
        return expand(self.root, published, only=machine, any_grid=any_grid, best_grids=grids)

    # Replays.

    def replay_rank(
        self,
        strategy: str,
        dataset: str,
        grid: str,
        *,
        rank: int = 0,
        **settings: Unpack[TrainingSettings],
    ) -> RankReplay:
        """Replay one rank's epoch, or its first steps, with the sizes of the dataset's card."""
        self.consulted.add("replay")
        admitted = self._admit(strategy, dataset, grid, settings)
        return RankReplay(replay(admitted, rank, steps=REPLAYED_STEPS))

    def count_steps(
        self, strategy: str, dataset: str, grid: str, **settings: Unpack[TrainingSettings]
    ) -> int:
        """Count the training steps of an epoch."""
        return self._admit(strategy, dataset, grid, settings).steps

    def _admit(self, strategy: str, dataset: str, grid: str, settings: TrainingSettings) -> Strategy:
        request = {
            "strategy.name": strategy,
            "dataset.name": dataset,
            "ranks": prod(map(int, grid.split("x"))),
            "grid": grid,
            "model.order": "aggregate_first",
            **with_dotted_keys(settings),
        }
        spec = make_spec(self.root, nest_settings(request), "a claim")
        return admit(load_strategy(strategy), spec, self.load_facts(dataset))

    # Partitions.

    def read_cut(self, dataset: str, partition: str, parts: int, twin: str = "") -> Cut:
        """Return the work and the communication of the parts of a graph if its store is built, else of a twin."""
        choice = DatasetChoice(name=dataset, partition=partition, parts=parts)
        folder = locate_store(self.root, self.load_card(dataset), choice)
        if not folder.exists():
            if not (twin and self.twins):
                raise UntestableClaim(BUILD_TWINS)
            self.consulted.add("twin")
            choice = choice.model_copy(update={"name": f"{dataset}@{twin.replace('/', '-')}"})
            self.log(f"partitioning {choice.name} into {parts} parts by {partition}")
            folder = build_store(self.root, choice)
        return require(read_manifest(folder)[0].cut, f"parts (store {folder.name})")

    # Times, predicted or measured.

    def time_epoch(self, runs: Selection) -> EpochTimes:
        """Return the epoch time of the selected runs on the fastest grid."""
        return self._time_fastest(runs, lambda spec, card: self.time_epoch_of_run(spec, runs.twins, card))

    def time_evaluation(self, runs: Selection) -> EpochTimes:
        """Return the time of one evaluation of the whole graph in the selected runs."""
        return self._time_fastest(runs, self._time_evaluation_of_run)

    def time_line(self, runs: Selection) -> dict[int, EpochTimes]:
        """Return the epoch times of a line in a figure, by number of ranks."""
        counts = sorted({spec.ranks for spec in self.list_runs(runs, any_grid=True)})
        return {ranks: self.time_epoch(runs.narrow(ranks=ranks)) for ranks in counts}

    def time_epoch_of_run(self, spec: Spec, twins: str = "", card: str = "") -> EpochTime:
        """Return the epoch time of one run: measured if there is a record, predicted if not."""
        if spec.run_id in self._measured:
            self.consulted.add("record")
            return EpochTime(float(self._measured[spec.run_id]["epoch_seconds_median"]))
        self.consulted.add("prediction")
        return self._predict(spec, card, twins)

    def _time_fastest(self, runs: Selection, time_run: Callable[[Spec, str], EpochTime]) -> EpochTimes:
        fastest = EpochTimes()
        for spec, card in product(self.list_runs(runs), runs.cards or ("",)):
            key = (card, *(get_setting(spec, name) for name in OPEN_SETTINGS))
            time = time_run(spec, card)
            if key not in fastest or time.seconds < fastest[key].seconds:
                fastest[key] = time
        is_open = [len(set(values)) > 1 for values in zip(*fastest, strict=True)]
        return EpochTimes(
            (tuple(value if is_open[place] else None for place, value in enumerate(key)), time)
            for key, time in fastest.items()
        )

    def _time_evaluation_of_run(self, spec: Spec, card_name: str) -> EpochTime:
        if spec.run_id in self._measured:
            self.consulted.add("record")
            return EpochTime(float(self._measured[spec.run_id]["evaluation_seconds"]))
        self.consulted.add("prediction")
        return self._predict(spec, card_name, evaluation=True)

    def _admit_run(self, spec: Spec) -> Strategy:
        return admit(load_strategy(spec.strategy.name), spec, self.load_facts(spec.dataset.name))

    def _predict(self, spec: Spec, card_name: str, twins: str = "", *, evaluation: bool = False) -> EpochTime:
        """Return the predicted time of an epoch or of an evaluation: the saved one, or a new one, which is saved."""
        card = self.load_machine(card_name or spec.machine.name)
        saved = self.saved.find(spec, card.name, twins, evaluation=evaluation)
        if saved is None or saved.predicted is None:
            if twins and not self.twins:
                raise UntestableClaim(BUILD_TWINS)
            if self.quick:
                raise UntestableClaim("predictions were left out (--quick)")
            prediction = self._predict_anew(self._admit_run(spec), card, twins, evaluation=evaluation)
            self.saved.add(spec, card.name, prediction, twins, evaluation=evaluation)
        else:
            prediction = saved.predicted
        return EpochTime(prediction.seconds.value, card, prediction, spec.strategy.name)

    def _predict_anew(
        self, strategy: Strategy, card: MachineCard, twins: str, *, evaluation: bool
    ) -> Prediction:
        if evaluation:
            try:
                return predict(Ready(strategy), card, evaluation=True)
            except UserError as refusal:
                raise UntestableClaim(str(refusal)) from refusal
        if twins:
            ready = admit_on_twins(self.root, strategy, twins.split(","), self.log)
            return predict_from_twins(strategy, card, ready)
        if has_many_bins(strategy):
            return predict_from_scaled_sizes(strategy, card)
        return predict(Ready(strategy), card)

    # Records.

    def read_measured(self, runs: Selection, column: str) -> float:
        """Read the median of a column of the table `runs` over the records of the selected runs."""
        specs = self.list_runs(runs)
        measured = [self._measured[spec.run_id][column] for spec in specs if spec.run_id in self._measured]
        if not measured:
            first = specs[0]
            raise UntestableClaim(
                f"it takes a run of {'|'.join(runs.experiments)} ({first.strategy.name} on {first.dataset.name}, "
                f"{first.ranks} ranks of {first.machine.name}), and none is among the collected tables"
            )
        self.consulted.add("record")
        return float(median(measured))


def has_many_bins(strategy: Strategy) -> bool:
    """Return whether a replay would compute very many bins (`harness.prediction.scaled_sizes`)."""
    size = getattr(strategy, "bin_size", 0)
    return bool(size) and strategy.facts.vertices > MANY_BINS * size


def require(value: T | None, what: str) -> T:
    """Return a value of a card, or raise an error that names what the card lacks."""
    if value is None:
        raise UserError(f"the card lacks {what}")
    return value


def read_printed_numbers(root: Path) -> dict[str, float]:
    """Read the numbers that the claims of all papers print, by claim."""
    found = {}
    for path in sorted((root / CLAIMS).glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found.update(
                {row.get("id", ""): read_number(row.get("value", "")) for row in csv.DictReader(file)}
            )
    return {claim: number for claim, number in found.items() if number is not None}


def read_number(text: str) -> float | None:
    """Return a printed number; None for a statement in words or a formula."""
    try:
        return float(text)
    except ValueError:
        return None


def _read_measured(tables: Path) -> Mapping[str, dict[str, Any]]:
    """Read the rows of the measured runs that succeeded, by run id."""
    runs = read_collected(tables, "runs")
    measured = runs[(runs.status == "ok") & (runs.source == "measured")].set_index("run_id")
    return {str(run_id): dict(row) for run_id, row in measured.iterrows()}
