"""harness run: trains, and records everything about the run."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, field
from dataclasses import dataclass as plain_dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import format_count, format_seconds, format_share
from harness.base.untrusted import escape_line
from harness.cli.commands.answer import Answer
from harness.cli.commands.launch_summary import lay_out_launches
from harness.cli.commands.output import (
    MOST_ROWS,
    Block,
    Command,
    FactList,
    Headline,
    Table,
    TableColumn,
    View,
)
from harness.cli.commands.request import CONFIG, File, Files, Folder, OptionStyle
from harness.cli.commands.run_facts import (
    describe_cores_of_run,
    describe_error,
    describe_result,
    format_grid_of,
    format_time,
    get_name,
    list_chosen_settings,
    list_results,
    make_show_command,
    tabulate_phases,
)
from harness.cli.commands.run_options import RequestedRun
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    import pandas as pd

    from harness.results.record import Record
    from harness.spec.spec import Spec


MOST_LAUNCHES = 1000


@dataclass(frozen=True, config=CONFIG)
class RunRequest(RequestedRun):
    """A run, by its strategy and its graph, or runs by their specs."""

    _: KW_ONLY
    spec: Files = ()
    """Files of complete specs, which run one after the other. The exit code is 0 if every run has a record."""
    launches: Annotated[int | None, Field(ge=1, le=MOST_LAUNCHES), OptionStyle(metavar="N")] = None
    """Run the launches 0 to N-1 of the run, or of each spec, in fresh processes, and print the median over launches
    with its interval. Launches that have a result are not repeated."""
    job: File = None
    """With --spec: the file of the workflow's job that contains these specs, for the predicted time of each run."""
    build: bool = False
    """With --spec or --launches: build missing stores of small graphs that are generated, which are made in memory
    otherwise."""
    out: Folder = None
    """The folder for run folders (default: results/runs)."""
    in_process: bool = False
    """Run one rank in this process, for a debugger."""
    fresh: bool = False
    """Run again even if this run has a result."""
    trace: bool = False
    """Record a tape (measure.tape), replay it on the links of the machine card, and write the timelines of all ranks to
    trace.json in the run folder, for ui.perfetto.dev."""

    @property
    def runs(self) -> Path:
        """The folder for run folders."""
        return self.out or self.default_runs


@plain_dataclass(frozen=True)
class FinishedRun:
    """A run that has a record."""

    record: "Record"
    is_cached: bool
    """Whether the record was there before."""
    trace: Mapping[str, Any] | None = None
    """The summary of the trace."""

    def to_document(self) -> dict[str, Any]:
        """Return the record with its folder and the requested number of epochs, as JSON data."""
        known = self.record.record
        document = {
            "folder": str(self.record.folder),
            "cached": self.is_cached,
            "epochs_asked": self.record.parse_spec().training.epochs,
            **known,
            "summary": known["summary"],
        }
        return document if self.trace is None else {**document, "trace": self.trace}

    def to_row(self) -> dict[str, Any]:
        """Return the row of a table."""
        record, summary = self.record, self.record.record["summary"]
        return {
            "run_id": record.record["run_id"],
            "strategy": get_name(record, "strategy"),
            "dataset": get_name(record, "dataset"),
            "launch": record.spec.get("launch"),
            "ranks": record.spec.get("ranks"),
            "grid": format_grid_of(record),
            "status": record.record["status"],
            "epoch_seconds": record.epoch_seconds,
            "elements_received": summary.get("elements_received"),
            "loss": summary.get("final_loss"),
            "accuracy_test": summary.get("accuracy_test"),
            "label": record.record["label"],
            "folder": str(record.folder),
        }


RUN_ROW = (
    TableColumn("strategy", "strategy"),
    TableColumn("dataset", "graph"),
    TableColumn("ranks", "ranks", "whole"),
    TableColumn("grid", "--grid", may_drop=True),
    TableColumn("status", "status"),
    TableColumn("epoch_seconds", "epoch", "s"),
    TableColumn("elements_received", "received", "count", may_drop=True),
    TableColumn("accuracy_test", "test accuracy", "number", format="{:.3f}".format, may_drop=True),
)


@plain_dataclass(frozen=True)
class RunAnswer(Answer):
    """The runs that have a record, and the reasons why others have none."""

    request: RunRequest
    runs: Sequence[FinishedRun] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """The reason for each run without a record, by its label or the file of its spec."""
    is_rank: bool = False
    """Whether this process only ran ranks of another process's runs. Then nothing is printed."""

    @property
    def record(self) -> "Record":
        """The record of the run; of several, the last."""
        return self.runs[-1].record

    @property
    def epoch_seconds(self) -> float | None:
        """The median time of an epoch without the warm-up; None if the run has no timed epoch.

        Of several launches of one run, the median over the launches.
        """
        runs = self.runs[-1:] if self.request.spec else self.runs
        seconds = [run.record.epoch_seconds for run in runs]
        known = [each for each in seconds if each is not None]
        return median(known) if known else None

    @property
    def exit_code(self) -> int:
        if self.missing:
            return 1
        is_ok = all(run.record.record["status"] == "ok" for run in self.runs)
        return 0 if self.request.spec or is_ok else 1

    def to_document(self) -> Any:
        if self.is_rank:
            return None
        documents = [run.to_document() for run in self.runs]
        is_single = len(self.request.spec) <= 1 and not self.request.launches
        return documents[0] if len(documents) == 1 and is_single else documents

    def to_frame(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame([run.to_row() for run in self.runs])

    def lay_out(self, view: View) -> Iterator[Block]:
        if len(self.runs) == 1 and not self.missing:
            yield from self._lay_out_run(self.runs[0], view)
        elif self.runs or self.missing:
            yield from self._lay_out_series()

    def _lay_out_run(self, run: FinishedRun, view: View) -> Iterator[Block]:
        record, request = run.record, self.request
        yield Headline(describe_result(record))
        if error := describe_error(record):
            yield error
        if run.is_cached:
            yield f"Recorded {format_time(record.ended)} UTC; --fresh runs it again."
        facts = list(list_results(record))
        if shared := describe_cores_of_run(record):
            facts.append(("Cores", shared))
        facts += _list_generated_data(request, record)
        facts += [("Run", record.record["label"]), ("Folder", str(record.folder))]
        yield FactList(facts)
        if view.verbose:
            yield FactList(
                [(key, str(value)) for key, value in list_chosen_settings(record).items()],
                "Settings that differ from the defaults",
            )
            yield tabulate_phases(record)
        if run.trace:
            yield from lay_out_trace(run.trace)
        elif request.trace:
            yield "No trace: a run that did not succeed has no tape."
        if not request.spec:
            yield from self._lay_out_next_steps(record)

    def _lay_out_next_steps(self, record: "Record") -> Iterator[Block]:
        yield Command(make_show_command(record, self.request.runs, self.request.default_runs))
        if record.record["status"] == "ok":
            yield self._make_collect_command("report")

    def _make_collect_command(self, verb: str) -> Command:
        place = ["--runs", str(self.request.out)] if self.request.out else []
        return Command(f"{shlex.join(['harness', 'collect', *place])} && harness {verb}")

    def _lay_out_series(self) -> Iterator[Block]:
        rows = [run.to_row() for run in self.runs]
        columns = [TableColumn("run", "run"), TableColumn("reason", "reason", may_wrap=True)]
        statuses = [row["status"] for row in rows] + ["no record"] * len(self.missing)
        counts = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)]
        yield Headline(f"{format_count(len(statuses), 'run')}: {', '.join(counts)}")
        if self.request.launches and self.runs:
            yield from lay_out_launches([run.record for run in self.runs])
        else:
            yield Table(RUN_ROW, rows, most_rows=MOST_ROWS)
        yield Table(
            columns,
            [{"run": name, "reason": reason} for name, reason in self.missing.items()],
            title="Without a record",
        )
        if self.request.launches and not self.missing:
            first = sum(run.record.spec["launch"] == 0 for run in self.runs)
            results = os.path.relpath(self.request.results)
            yield self._make_collect_command("report" if first == 1 else shlex.join(["compare", results]))


def _list_generated_data(request: RunRequest, record: "Record") -> Iterator[tuple[str, str]]:
    """Yield which data of the vertices of a real graph are generated, on which its accuracy depends."""
    from harness.graph.cards.catalog import load_card

    try:
        card = load_card(request.home, get_name(record, "dataset"))
    except UserError:  # the card was removed since
        return
    if card.is_real and (generated := card.describe_generated_data()):
        yield "Generated", f"{generated}; the accuracy depends on them"


TOP = 6
"""The number of kernels and calls in a summary."""


def lay_out_trace(trace: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the summary of a trace: what the ranks do, their balance, the longest kernels and waits."""
    shares = ", ".join(f"{kind} {format_share(share)}" for kind, share in trace["shares"].items())
    yield FactList(
        [
            ("Epoch", f"{format_seconds(trace['epoch_seconds'])}, the tape on the links of {trace['card']}"),
            ("Time of all ranks", shares),
            (
                "Imbalance",
                f"{trace['imbalance']:.2f} (maximum over mean of the computing time); "
                f"rank {trace['longest']} computes longest",
            ),
            ("Timelines", f"{trace['file']} (open it at ui.perfetto.dev)"),
        ],
        "Trace",
    )
    columns = (
        TableColumn("name", "", may_wrap=True),
        TableColumn("seconds", "time", "s"),
        TableColumn("share", "share", "%"),
    )
    for title, key in (("Longest kernels", "kernels"), ("Longest waits for communication", "exposed")):
        rows = [
            {"name": name, "seconds": seconds, "share": seconds / trace["epoch_seconds"]}
            for name, seconds in trace[key].items()
        ]
        if rows:
            yield Table(columns, rows, f"{title}, mean of the ranks", most_rows=TOP)
        else:
            yield f"{title}: none."


@verb(RunRequest)
def run(request: RunRequest, reporter: Reporter) -> RunAnswer:
    """Train with one strategy and record everything about the run.

    A run that has a result is not repeated. If another launcher, such as torchrun, started this process as a rank, the
    run uses the ranks of that launcher.
    """
    from harness.runtime.launch.joined_world import find_joined_world

    world = find_joined_world()
    if world is None:
        return _run_request(request, reporter)
    if world.at.rank:
        world.follow_runs(request.home, request.runs)
        return RunAnswer(request, is_rank=True)
    try:
        return _run_request(request, reporter)
    finally:
        world.dismiss_followers()


def _run_request(request: RunRequest, reporter: Reporter) -> RunAnswer:
    if request.launches:
        _check_launch_options(request)
    if request.build and not (request.spec or request.launches):
        raise UserError(
            "--build is for --spec and --launches: build the graph of one run by `harness data build`."
        )
    if request.spec:
        return _run_spec_files(request, reporter)
    if not (request.strategy and request.dataset):
        raise UserError("run takes either --spec FILE or --strategy NAME --dataset NAME [--ranks P].")
    if request.launches:
        return _run_series(request, [make_spec(request)], {}, reporter)
    from harness.results.record import read_record
    from harness.runtime.launch.fork_server import ForkServer
    from harness.runtime.launch.joined_world import find_joined_world
    from harness.runtime.launch.launch import ensure_result, launch, launch_in_process, prepare_fork_server
    from harness.spec.machine_card import list_machines, load_machine

    root, runs = request.home, request.runs
    with ForkServer() as server:
        machine = request.settings.get("machine", "local")
        is_forked = (
            not (request.in_process or find_joined_world())
            and machine in list_machines(root)
            and prepare_fork_server(server, load_machine(root, machine), root)
        )
        spec = server.call(f"{__name__}:make_spec", request) if is_forked else make_spec(request)
        folder = runs / spec.run_id
        start = (
            partial(launch_in_process, spec, root, runs)
            if request.in_process
            else partial(launch, spec, root, runs, reporter.log, fork_server=server)
        )
        with ensure_result(spec, runs, reporter.log, start, fresh=request.fresh) as is_cached:
            record = read_record(folder)
    if record.record["status"] == "refused":
        raise UserError(record.record["error"]["message"])
    has_trace = request.trace and record.record["status"] == "ok"
    trace = _write_trace(root, record, request.strategy) if has_trace else None
    return RunAnswer(request, [FinishedRun(record, is_cached, trace)])


def make_spec(request: RunRequest) -> "Spec":
    """Return the spec of the run. Raises UserError for a refused run before any rank is started."""
    from dataclasses import replace

    from harness.runtime.open_run import open_run

    if request.trace:
        request = replace(request, settings={**request.settings, "measure.tape": True})
    spec = request.make_spec("run")
    open_run(request.home, spec)
    if request.trace:
        from harness.prediction.emulation import check_traceable
        from harness.spec.machine_card import load_machine_card

        check_traceable(spec, load_machine_card(request.home, spec.machine.name))
    return spec


def _write_trace(root: Path, record: "Record", strategy: str | None) -> dict[str, Any]:
    """Write the trace of a run to its folder, and return a summary of it."""
    from harness.prediction.emulation import simulate_run, summarize_trace, write_trace
    from harness.spec.machine_card import load_machine_card

    card = record.parse_spec().machine.name
    simulated = simulate_run(record.folder, load_machine_card(root, card), strategy or "")
    path = record.folder / "trace.json"
    write_trace(path, simulated)
    return {"file": str(path), "card": card, **summarize_trace(simulated)}


def _run_spec_files(request: RunRequest, reporter: Reporter) -> RunAnswer:
    """Run the specs of several files, and show each run when it ends.

    An invalid spec, or a run without a readable record, does not stop the others. If there is only one file, an invalid
    spec raises UserError.
    """
    from harness.base.locks import RUNNING, hold_shared
    from harness.runtime.launch.series import describe_failure

    _check_spec_options(request)
    specs, missing = [], dict[str, str]()
    for path in request.spec:
        try:
            specs.append(_read_spec(path))
        except Exception as error:
            if len(request.spec) == 1:
                raise
            _report_missing(str(path), describe_failure(error), missing, reporter)
    with hold_shared(RUNNING) if request.job else nullcontext():  # the folder of its workflow is in use
        return _run_series(request, specs, missing, reporter)


def _report_missing(name: str, reason: str, missing: dict[str, str], reporter: Reporter) -> None:
    missing[name] = reason
    reporter.warn(escape_line(f"{name}: no record: {reason}"))


def _run_series(
    request: RunRequest, specs: "Sequence[Spec]", missing: dict[str, str], reporter: Reporter
) -> RunAnswer:
    """Run specs, or the launches of specs, one after the other. `missing` gets the runs without a record."""
    from harness.base.documents import read_json
    from harness.results.record import read_record
    from harness.runtime.launch.series import describe_failure, launch_series, list_launches
    from harness.runtime.slurm.jobs import read_predicted_limit

    finished = list[FinishedRun]()
    if request.launches:
        specs = list_launches(specs, request.launches)
    job = read_json(request.job, f"The job {request.job}") if request.job else {}
    predicted = {run_id: read_predicted_limit(planned) for run_id, planned in job.items()}
    outcomes = launch_series(
        specs,
        request.home,
        request.runs,
        reporter.log,
        fresh=request.fresh,
        build=request.build,
        predicted=predicted,
    )
    for outcome in outcomes:
        try:
            if outcome.folder is None:
                _report_missing(outcome.spec.label, outcome.why, missing, reporter)
                continue
            finished.append(FinishedRun(read_record(outcome.folder), outcome.cached))
            if request.launches:
                reporter.log(f"launch {outcome.spec.launch}: {describe_result(finished[-1].record)}")
            elif len(request.spec) > 1:
                reporter.show(RunAnswer(request, finished[-1:]))
        except Exception as error:
            _report_missing(outcome.spec.label, describe_failure(error), missing, reporter)
    return RunAnswer(request, finished, missing)


def _check_launch_options(request: RunRequest) -> None:
    """Raise UserError for what cannot be combined with several launches."""
    from harness.runtime.launch.joined_world import find_joined_world

    if "launch" in request.settings:
        raise UserError("--launches numbers the launches from 0: leave out --set launch.")
    if named := [
        option for option in ("--in-process", "--trace") if getattr(request, option[2:].replace("-", "_"))
    ]:
        raise UserError(f"{named[0]} is for one launch: leave out --launches.")
    if find_joined_world():
        raise UserError(
            "--launches starts fresh processes, and another launcher started these ranks. Start it once for each "
            "launch, with --set launch=0, --set launch=1 and so on."
        )


def _check_spec_options(request: RunRequest) -> None:
    """Raise UserError for an option that a complete spec contains."""
    if request.trace:
        raise UserError(
            "--trace is not accepted with --spec, because a tape is part of the spec: set tape to true under "
            "measure in the file, or request the run by --strategy NAME --dataset NAME."
        )
    given = {
        "--strategy": request.strategy,
        "--dataset": request.dataset,
        "--grid": request.grid,
        "--machine": request.machine,
        "--set": request.settings,
    }
    if named := [option for option, value in given.items() if value]:
        raise UserError(
            f"{' and '.join(named)} cannot be combined with --spec, because a spec is complete: change the file."
        )


def _read_spec(path: Path) -> "Spec":
    from harness.base.documents import read_json
    from harness.base.validation import validate
    from harness.spec.spec import Spec

    return validate(Spec, read_json(path, f"The spec {path}"), str(path))
