"""harness runs emulate: re-times an epoch of a recorded run on the network of another machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import format_count, format_interval, format_seconds, format_share
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import MOST_ROWS, Block, FactList, Headline, Table, View
from harness.cli.commands.predicting import (
    RUN_COLUMNS,
    EpochPrediction,
    collect_predictions,
    lay_out_refused,
)
from harness.cli.commands.request import CONFIG, File, Folder, MachineName, OptionStyle, Request
from harness.cli.commands.run_facts import ID_LENGTH
from harness.cli.commands.verb import Reporter, verb


@dataclass(frozen=True, config=CONFIG)
class EmulateRequest(Request):
    """The run to emulate, or the runs of a plan."""

    run: Annotated[str | None, OptionStyle(metavar="RUN", is_positional=True)] = None
    """The folder of a run, or the start of its id."""
    _: KW_ONLY
    plan: File = None
    """Emulate every successful run of a plan."""
    machine: MachineName | None = None
    """The machine card with the links (default: the card of the run)."""
    strategy: Annotated[str, OptionStyle(metavar="FILE:CLASS")] = ""
    """The strategy of the run, if it is in a file: the file that a record names is never executed."""
    out: Folder = None
    """Write each emulation as the record of a run to this folder."""
    trace: File = None
    """Write a trace with all ranks on one timeline, for ui.perfetto.dev."""


@plain_dataclass(frozen=True)
class EmulateAnswer(Answer):
    """The emulated epochs, and the reason for each run that was refused, by the id of the run."""

    epochs: Sequence[EpochPrediction]
    refused: Mapping[str, str]
    request: EmulateRequest

    def to_document(self) -> Any:
        documents = [epoch.to_document() for epoch in self.epochs]
        return {"emulated": documents, "refused": dict(self.refused)} if self.request.plan else documents[0]

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame([epoch.to_row() for epoch in self.epochs]).drop(
            columns="interval", errors="ignore"
        )

    def lay_out(self, view: View) -> Iterator[Block]:
        if self.request.plan:
            runs = format_count(len(self.epochs), "run")
            yield Headline(f"{runs} emulated: measured kernels on the links of the runs' machine cards")
            yield Table(RUN_COLUMNS, [epoch.to_row() for epoch in self.epochs], most_rows=MOST_ROWS)
        else:
            yield from self._lay_out_run(self.epochs[0])
        if self.refused:
            yield from lay_out_refused(self.refused, view, "without an emulation")

    def _lay_out_run(self, epoch: EpochPrediction) -> Iterator[Block]:
        spec, seconds = epoch.spec, epoch.predicted.seconds
        run = f"{spec.strategy.name} on {spec.dataset.name}, {format_count(spec.ranks, 'rank')}"
        interval = format_interval(seconds.low, seconds.high)
        yield Headline(
            f"{run}: {format_seconds(seconds.value)} an epoch ({interval}) with the kernels of run "
            f"{epoch.emulates[:ID_LENGTH]} on the links of {epoch.card.name}"
        )
        yield Table(RUN_COLUMNS, [epoch.to_row()])
        parts = [(name, format_share(share)) for name, share in epoch.predicted.parts.items()]
        yield FactList(parts, "Where the time goes")
        if self.request.trace:
            yield f"{self.request.trace} shows all ranks on one timeline (open it at ui.perfetto.dev)."


@verb(EmulateRequest)
def emulate(request: EmulateRequest, reporter: Reporter) -> EmulateAnswer:
    """Re-time an epoch of a recorded run on the network of another machine.

    Uses the measured times of kernels, and prices calls by the links of the machine's card. The run needs a tape:
    harness run ... --set measure.tape=true.
    """
    from harness.prediction.emulation import emulate as emulate_epoch
    from harness.prediction.emulation import simulate_run, write_trace
    from harness.results.record import find_run, read_record
    from harness.spec.machine_card import load_machine_card
    from harness.spec.plan import read_plan

    if (request.run is None) == (request.plan is None) or (request.plan and request.trace):
        raise UserError("runs emulate takes either RUN, with --trace if wanted, or --plan FILE.")
    root = request.home
    runs = request.default_runs
    folders = (
        [runs / run_id for run_id in read_plan(request.plan).runs_by_id]
        if request.plan
        else [find_run(runs, request.run or "")]
    )

    def emulate_run(folder: Path) -> EpochPrediction:
        card = load_machine_card(root, request.machine or read_record(folder).parse_spec().machine.name)
        spec, facts, predicted = emulate_epoch(folder, card, request.strategy)
        if request.trace:
            write_trace(request.trace, simulate_run(folder, card, request.strategy))
        return EpochPrediction(spec, facts, card, predicted, emulates=folder.name)

    tasks = {folder.name: partial(emulate_run, folder) for folder in folders}
    epochs, refused = collect_predictions(root, request.out, tasks, reporter)
    if request.run and refused:
        raise UserError(*refused.values())
    return EmulateAnswer(epochs, refused, request)
