"""harness predict: predicts the time of an epoch on a machine that has a card."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import (
    GB,
    format_bytes,
    format_count,
    format_interval,
    format_seconds,
    format_share,
)
from harness.base.progress import report_steps
from harness.cli.commands.answer import Answer
from harness.cli.commands.graph_options import CARD_NOTE, PredictionRequest, admit_spec
from harness.cli.commands.output import MOST_ROWS, Block, FactList, Headline, Table, TableColumn, View
from harness.cli.commands.request import (
    CONFIG,
    DatasetName,
    File,
    Folder,
    Grid,
    MachineName,
    RankCounts,
    StrategyName,
    list_counts,
)
from harness.cli.commands.verb import Reporter, verb
from harness.spec.spec import format_grid

if TYPE_CHECKING:
    from harness.prediction.epoch import Prediction
    from harness.spec.machine_card import MachineCard
    from harness.spec.spec import Spec
    from harness.strategy import Facts

Scale = Literal["tiny", "laptop", "emulated", "published"]


@dataclass(frozen=True, config=CONFIG)
class PredictRequest(PredictionRequest):
    """The runs to predict: a strategy on a graph, or an experiment."""

    strategy: StrategyName | None = None
    """The strategy, a name of `harness list strategies`, or path/to/file.py:Class."""
    dataset: DatasetName | None = None
    """The graph. Its sizes are counted in its store if it is built, and otherwise taken from its card."""
    ranks: RankCounts = (1,)
    """The numbers of ranks."""
    machine: MachineName = "local"
    """The machine card."""
    _: KW_ONLY
    grid: Grid = None
    """The size of each axis of the strategy, such as row=2,col=2; best, for the fastest grid; or all, for every grid
    (default: the strategy's first choice)."""
    experiment: File = None
    """The experiment whose runs are predicted, each on the machine that it names."""
    scale: Scale = "published"
    """With --experiment: the size of its runs."""
    out: Folder = None
    """Write each prediction as the record of a run to this folder, for tables and figures."""


class EpochPrediction(NamedTuple):
    """The predicted or emulated epoch of a run on a machine."""

    spec: "Spec"
    facts: "Facts"
    card: "MachineCard"
    predicted: "Prediction"
    emulates: str = ""
    """The id of the run that was emulated."""

    @property
    def fits(self) -> bool:
        """Whether the peak memory fits a rank, as far as the card tells."""
        return self.card.memory_gb is None or self.predicted.peak_bytes <= self.card.memory_gb * GB

    def to_row(self) -> dict[str, Any]:
        """Return the row of a table."""
        predicted, seconds = self.predicted, self.predicted.seconds
        return {
            "run": self.spec.label,
            "strategy": self.spec.strategy.name,
            "dataset": self.spec.dataset.name,
            "machine": self.card.name,
            "ranks": self.spec.ranks,
            "grid": format_grid(self.spec.grid),
            **predicted.as_row(),
            "interval": (seconds.low, seconds.high),
            "waiting_share": predicted.waiting / seconds.value,
            "memory": None if self.fits else "out of memory",
            "limited_by": name_constant(predicted.limited_by),
        }

    def to_document(self) -> dict[str, Any]:
        known = {
            "run": self.spec.label,
            "machine": self.card.name,
            "ranks": self.spec.ranks,
            "grid": self.spec.grid,
        }
        return {**known, **make_document(self.predicted)}


def make_document(predicted: "Prediction") -> dict[str, Any]:
    """Return a prediction as JSON data."""
    return {
        "seconds": vars(predicted.seconds),
        "entries": [{**key._asdict(), "seconds": seconds} for key, seconds in predicted.entries.items()],
        "waiting": predicted.waiting,
        "elements_received": predicted.elements_received,
        "peak_bytes": predicted.peak_bytes,
        "shares": dict(predicted.shares),
    }


CONSTANT_NAMES = {
    "rates.tflops": "arithmetic",
    "rates.memory_gbs": "memory bandwidth",
    "rates.efficiency": "efficiency of kernels",
    "rates.launch_us": "launches of kernels",
    "rates.issue_us": "issuing of kernels by the host",
    "rates.event_us": "code around kernels",
    "rates.sample_ns": "sampling",
    "rates.spmm": "SpMM",
    "links.intra_gbs": "bandwidth in a node",
    "links.peer_gbs": "bandwidth of a direct link",
    "links.node_gbs": "bandwidth between nodes",
    "links.all_to_all_share": "bandwidth of all-to-all",
    "links.call_us": "minimum time of calls",
    "links.exchange_us": "minimum time of all-to-alls",
    "links.intra_latency_us": "latency in a node",
    "links.latency_us": "latency between nodes",
    "links.cpu_gbs": "bandwidth of a core",
    "links.host_gbs": "copies to the host",
    "links.host_latency_us": "latency of copies to the host",
}
"""The constants of a machine card that can limit an epoch, as tables print them."""


def name_constant(constant: str) -> str:
    """Return what a constant of a machine card limits."""
    return CONSTANT_NAMES.get(constant, constant)


COST_COLUMNS = (
    TableColumn("grid", "--grid"),
    TableColumn("epoch_seconds", "epoch", "s"),
    TableColumn("interval", "interval", "number", format=lambda interval: format_interval(*interval)),
    TableColumn("waiting_share", "waiting", "%", may_drop=True),
    TableColumn("elements_received", "received", "count"),
    TableColumn("peak_bytes", "peak", "B", may_drop=True),
    TableColumn("memory", "memory"),
    TableColumn("limited_by", "limited by", may_drop=True),
)
RUN_COLUMNS = (
    TableColumn("run", "run"),
    TableColumn("machine", "machine"),
    TableColumn("ranks", "ranks", "whole"),
    *COST_COLUMNS,
)


@plain_dataclass(frozen=True)
class PredictAnswer(Answer):
    """The predicted epochs, and the reason for each run that was refused, by label."""

    epochs: Sequence[EpochPrediction]
    refused: Mapping[str, str]
    request: PredictRequest

    @property
    def prediction(self) -> "Prediction":
        """The prediction of the only run. Raises ValueError if several were requested."""
        (epoch,) = self.epochs
        return epoch.predicted

    def to_document(self) -> Any:
        return {"predicted": [epoch.to_document() for epoch in self.epochs], "refused": dict(self.refused)}

    def to_frame(self) -> Any:
        import pandas as pd

        frame = pd.DataFrame([epoch.to_row() for epoch in self.epochs])
        return frame.drop(columns="interval", errors="ignore")

    def lay_out(self, view: View) -> Iterator[Block]:
        if self.epochs:
            yield from self._lay_out_epochs(view)
        if self.refused:
            yield from lay_out_refused(self.refused, view, "without a prediction")

    def _lay_out_epochs(self, view: View) -> Iterator[Block]:
        from harness.prediction.card_status import describe_card, find_further_error

        rows = [epoch.to_row() for epoch in self.epochs]
        if self.request.experiment:
            yield Headline(f"{format_count(len(rows), 'run')} of {self.request.experiment.name}, predicted")
            yield Table(RUN_COLUMNS, rows, most_rows=MOST_ROWS)
            return
        fitting = [epoch for epoch in self.epochs if epoch.fits]
        fastest = min(fitting or self.epochs, key=lambda epoch: epoch.predicted.seconds.value)
        yield Headline(self._describe_fastest(fastest, has_room=bool(fitting)))
        yield Table(RUN_COLUMNS[2:], rows, most_rows=MOST_ROWS)
        detailed = self.epochs if view.verbose or len(self.epochs) == 1 else ()
        for epoch in detailed:
            title = f"Where the time goes on {format_count(epoch.spec.ranks, 'rank')}, {format_grid(epoch.spec.grid)}"
            yield FactList(
                [(name, format_share(share)) for name, share in epoch.predicted.parts.items()], title
            )
        facts, card = fastest.facts, fastest.card
        status = describe_card(card)
        if status.measured_elsewhere:
            yield f"The card {card.name} was {status.measured_elsewhere}."
        if find_further_error(card) > 1:
            yield status.coverage
        yield f"Sizes {self.request.describe_sizes(facts)}."
        is_partitioned = any(epoch.predicted and _is_partitioned(epoch.spec) for epoch in self.epochs)
        if is_partitioned and not (facts.exact or self.request.twins):
            yield CARD_NOTE

    def _describe_fastest(self, fastest: EpochPrediction, *, has_room: bool) -> str:
        """Return the time of the fastest epoch in one line, or that none fits the memory."""
        spec, seconds = fastest.spec, fastest.predicted.seconds
        where = f"{spec.strategy.name} on {spec.dataset.name}, {fastest.card.name}"
        if not has_room:
            peak = format_bytes(fastest.predicted.peak_bytes)
            room = format_bytes((fastest.card.memory_gb or 0) * GB)
            return f"{where}: out of memory, a rank needs {peak} and has {room}"
        first = "fastest on " if len(self.epochs) > 1 else ""
        time = f"{format_seconds(seconds.value)} an epoch ({format_interval(seconds.low, seconds.high)})"
        return f"{where}: {first}{format_count(spec.ranks, 'rank')}, {time}"


def _is_partitioned(spec: "Spec") -> bool:
    from harness.registry import load_strategy

    return load_strategy(spec.strategy.name).partitioned_over is not None


def lay_out_refused(refused: Mapping[str, str], view: View, what: str) -> Iterator[Block]:
    """Yield the runs that were refused: their number, or with --why the reasons."""
    if not view.why:
        yield f"{len(refused)} {what} (--why)"
        return
    columns = [TableColumn("run", "run"), TableColumn("reason", "reason", may_wrap=True)]
    rows = [{"run": label, "reason": reason} for label, reason in refused.items()]
    yield Table(columns, rows, title=f"{len(refused)} {what}")


@verb(PredictRequest)
def predict(request: PredictRequest, reporter: Reporter) -> PredictAnswer:
    """Predict the time of an epoch on a machine.

    Replays the strategy's own code on shapes, prices its kernels and messages by the constants of the machine card
    config/machines/NAME.yaml, and simulates how ranks wait for each other. The interval follows from the intervals of
    the constants. With --experiment, predicts every run of an experiment on the machine that the run names.
    """
    if (request.experiment is None) == (request.strategy is None and request.dataset is None):
        raise UserError("predict takes either --strategy NAME --dataset NAME or --experiment FILE.")
    if request.experiment is None and not (request.strategy and request.dataset):
        missing = "--dataset" if request.strategy else "--strategy"
        raise UserError(f"predict needs {missing} NAME, too.")
    specs = _list_experiment_specs(request) if request.experiment else _list_specs(request, reporter)
    look_up, predict_epoch = request.make_graph_lookup(), request.make_predictor(reporter.log)
    root = request.home

    def predict_run(spec: "Spec") -> EpochPrediction:
        from harness.spec.machine_card import load_machine_card

        card, ready = load_machine_card(root, spec.machine.name), admit_spec(spec, look_up)
        return EpochPrediction(spec, ready.strategy.facts, card, predict_epoch(ready, card))

    tasks = {label: partial(predict_run, spec) for label, spec in specs.items()}
    epochs, refused = collect_predictions(root, request.out, tasks, reporter, specs)
    if refused and not request.experiment and request.grid != "all":
        raise UserError(next(iter(refused.values())))
    if request.grid == "all":
        epochs = sorted(epochs, key=lambda epoch: (epoch.spec.ranks, epoch.predicted.seconds.value))
    return PredictAnswer(epochs, refused, request)


def _list_specs(request: PredictRequest, reporter: Reporter) -> dict[str, "Spec"]:
    """Return the requested specs by their names in errors: one for each number of ranks, or for each grid."""
    from harness.experiment.requests import make_spec
    from harness.prediction.epoch import check_card
    from harness.registry import load_strategy
    from harness.spec.machine_card import load_machine_card

    root, specs = request.home, dict[str, "Spec"]()
    check_card(load_machine_card(root, request.machine))
    assert request.strategy
    for count in report_steps(
        list_counts(request.ranks), lambda count: f"preparing {count} ranks", reporter.step
    ):
        grids: Sequence[Any] = [request.grid]
        if request.grid == "all":
            grids = load_strategy(request.strategy).grids(count)
            if not grids:
                raise UserError(f"{request.strategy} has no grid of {count} ranks.")
        for grid in grids:
            wanted = request.nest_settings(
                {"dataset.name": request.dataset, "ranks": count, "machine": request.machine}
            )
            wanted["strategy"] = {**wanted.get("strategy", {}), "name": request.strategy}
            spec = make_spec(root, {**wanted, **({"grid": grid} if grid else {})}, "the options")
            specs[f"{count} ranks, {format_grid(spec.grid)}"] = spec
    return specs


def _list_experiment_specs(request: PredictRequest) -> dict[str, "Spec"]:
    """Return the specs of an experiment by label. Runs that differ only in their launch are predicted once."""
    from harness.experiment.expand import expand
    from harness.experiment.experiment_file import load_experiment
    from harness.experiment.scales import select_scale
    from harness.prediction.epoch import group_machine_variants

    assert request.experiment
    specs = expand(
        request.home, select_scale(request.home, load_experiment(request.experiment), request.scale)
    )
    firsts = (spec.model_copy(update={"launch": 0}) for spec in specs)
    return {spec.label: spec for spec in group_machine_variants(firsts)}


def collect_predictions(
    root: Path,
    out: Path | None,
    tasks: Mapping[str, Callable[[], EpochPrediction]],
    reporter: Reporter,
    specs: Mapping[str, "Spec"] | None = None,
) -> tuple[list[EpochPrediction], dict[str, str]]:
    """Run every predictor in `tasks`, which are named by label, and write a record of each prediction under `out`.

    Returns the predictions, and the reasons for refused runs by label. Refused runs are recorded, too, if `specs` has
    their specs.
    """
    from harness.prediction.predicted_record import record_prediction, record_refusal
    from harness.runtime.provenance import collect_provenance

    provenance = collect_provenance(root) if out else {}
    epochs, refused = list[EpochPrediction](), dict[str, str]()
    if out:  # a workflow waits for the folder even if all runs are refused
        out.mkdir(parents=True, exist_ok=True)
    for label in report_steps(tasks, lambda label: f"predicting {label}", reporter.step):
        try:
            epoch = tasks[label]()
        except UserError as refusal:
            refused[label] = str(refusal)
            if out and specs:
                record_refusal(out, specs[label], str(refusal), provenance)
            continue
        epochs.append(epoch)
        if out:
            record_prediction(
                out, epoch.spec, epoch.facts, epoch.card, epoch.predicted, provenance, epoch.emulates
            )
    return epochs, refused
