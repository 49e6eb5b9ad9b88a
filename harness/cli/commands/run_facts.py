"""What is printed about a recorded run: its name, its times, what a rank receives, its settings, and its failure."""

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.formatting import format_bytes, format_count, format_seconds, format_si
from harness.cli.commands.output import Table, TableColumn
from harness.ledger import AxisName
from harness.results.record import Record
from harness.results.run_row import describe_cause
from harness.spec.spec import format_grid

ID_LENGTH = 8
"""The number of characters of a run id that are printed where other ids are not near."""


def get_name(record: Record, key: str) -> str:
    """Return the name of the strategy or the dataset; empty if the record of another program lacks it."""
    return str((record.spec.get(key) or {}).get("name", ""))


def format_grid_of(record: Record) -> str:
    """Return the grid of a run as --grid accepts it; empty if the record of another program lacks it.

    A record has the axes in alphabetical order. They are shown in the order in which strategies list them.
    """
    grid = record.spec.get("grid") or {}
    return format_grid({axis: grid[axis] for axis in [*AxisName, *grid] if axis in grid}) if grid else ""


def describe_run(record: Record) -> str:
    """Return a run as people call it: cagnet-2d on reddit, 4 ranks (row=2,col=2)."""
    spec = record.spec
    ranks = format_count(spec["ranks"], "rank") if spec.get("ranks") else ""
    grid = f" ({format_grid_of(record)})" if len(spec.get("grid") or {}) > 1 else ""
    names = f"{get_name(record, 'strategy')} on {get_name(record, 'dataset')}"
    return f"{names}, {ranks}{grid}" if ranks else names


BEYOND_TITLE = "Beyond a spec"
"""The title of what a spec cannot express about a run of another program."""


RECORD_AGAIN = (
    "To repeat a run of another program, run that program again: `harness external run` records its output, and "
    "`harness external read` its log."
)


def name_epoch_time(record: Record) -> str:
    """Return what the epoch time of another program's run is: its mean or its median."""
    return str(record.record.get("external", {}).get("times", "mean"))


def describe_result(record: Record) -> str:
    """Return the line that a person would quote: the run, its epoch time, and its accuracy or its failure."""
    summary, status = record.record["summary"], record.record["status"]
    parts = [] if status == "ok" else [status]
    if (seconds := record.epoch_seconds) is not None:
        sources = {
            "predicted": ", predicted",
            "emulated": ", emulated",
            "external": f" ({name_epoch_time(record)} of a log)",
        }
        source = sources.get(record.record["source"], "")
        epochs = f" (median of {summary['epochs']})" if summary.get("epochs") and not source else source
        parts.append(f"{format_seconds(seconds)} an epoch{epochs}")
    if (accuracy := summary.get("accuracy_test")) is not None:
        parts.append(f"test {name_metric(summary)} {accuracy:.3f}")
    return f"{describe_run(record)}: {', '.join(parts) or status}"


METRICS = {"ogb rocauc": "ROC-AUC", "ogb acc": "accuracy"}
"""The scores of OGB's Evaluator, by the names that records have."""


def name_metric(summary: Mapping[str, Any]) -> str:
    """Return the name of the score that a record calls accuracy."""
    return METRICS.get(summary.get("accuracy_by", ""), "accuracy")


def list_results(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the results of a run and their names. Any number may be missing."""
    summary = record.record["summary"]
    done, epochs = summary.get("epochs") or 0, (record.spec.get("training") or {}).get("epochs")
    if summary.get("seconds_to_target") is not None and epochs and done < epochs:
        yield (
            "Target",
            f"accuracy reached after {done} of {epochs} epochs, in {format_seconds(summary['seconds_to_target'])}",
        )
    if record.epoch_seconds is not None:
        loss = summary.get("final_loss")
        yield "Loss", "not finite" if loss is None else f"{loss:.4g}"
    accuracies = [
        f"{split} {value:.3f}"
        for split in ("train", "valid", "test")
        if (value := summary.get(f"accuracy_{split}")) is not None
    ]
    if accuracies:
        judge = ", by OGB's Evaluator" if summary.get("accuracy_by") else ""
        metric = name_metric(summary)
        yield metric[0].upper() + metric[1:], ", ".join(accuracies) + judge
    elif done:
        yield "Accuracy", "none: no labelled vertices, or no evaluation"
    if received := describe_received(record):
        yield "Received", received
    if (seconds := summary.get("setup_seconds")) is not None:
        yield "Set-up", f"{format_seconds(seconds)} before the first epoch, not part of any other time"
    if peak := describe_peak_memory(record):
        yield "Peak memory", peak


def describe_received(record: Record) -> str:
    """Return what the busiest rank receives in an epoch, with its bytes and the lower bound; empty if not recorded."""
    summary = record.record["summary"]
    if (received := summary.get("elements_received")) is None:
        return ""
    from harness.results.run_summary import compute_bytes_received

    try:
        size = compute_bytes_received(record.columns("ledger"))
    except UserError:  # the ledger cannot be read
        size = None
    text = f"{format_si(received)} elements per rank and epoch"
    text += f" ({format_bytes(size)})" if size else ""
    if bound := summary.get("elements_bound"):
        ratio = f"{received / bound:.3g}"
        text += (
            ", the lower bound" if ratio == "1" else f", {ratio} times the lower bound of {format_si(bound)}"
        )
    return text


def describe_peak_memory(record: Record) -> str:
    """Return the peak memory of the rank with the most, on the host and on the device; empty if not recorded."""
    try:
        rows = record.columns("memory")
    except UserError:
        return ""
    peaks = {"of a process": rows["host_peak_bytes"], "on a device": rows["device_peak_bytes"]}
    places = {place: sizes.max(initial=0) for place, sizes in peaks.items()}
    return ", ".join(f"{format_bytes(size)} {place}" for place, size in places.items() if size > 0)


def describe_shared_cores(ranks: int, threads: int, cores: int) -> str:
    """Return that ranks on a host have more threads than cores, and what follows; empty if they have not."""
    if ranks * threads <= cores:
        return ""
    each = " each" if ranks > 1 else ""
    return (
        f"{format_count(ranks, 'rank')} with {format_count(threads, 'thread')}{each} on {format_count(cores, 'core')}: "
        "they share cores, so the times do not measure scaling"
    )


def describe_cores_of_run(record: Record) -> str:
    """Return that the ranks of a measured run shared cores; empty if they did not, or if that was not recorded."""
    known = record.record.get("provenance") or {}
    ranks, threads, cores = (known.get(name) for name in ("ranks_on_host", "threads", "cores"))
    if record.record["source"] != "measured" or not (ranks and threads and cores):
        return ""
    return describe_shared_cores(ranks, threads, cores)


def tabulate_phases(record: Record) -> Table:
    """Return the phases of the median epoch on its slowest rank, the longest first."""
    from harness.results.epoch_parts import split_launch

    sums: dict[str, float] = {}
    try:
        epochs, ledger = record.table("epochs"), record.table("ledger")
    except UserError:
        return Table((), ())
    if len(epochs) and len(ledger):
        for (phase, *_), seconds in split_launch(epochs, ledger).items():
            sums[phase] = sums.get(phase, 0.0) + seconds
    total = sum(sums.values())
    rows = [
        {"phase": phase, "seconds": seconds, "share": seconds / total}
        for phase, seconds in sorted(sums.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
    columns = (
        TableColumn("phase", "phase"),
        TableColumn("seconds", "time", "s"),
        TableColumn("share", "share", "%"),
    )
    return Table(columns, rows, "The median epoch, on its slowest rank")


def describe_error(record: Record) -> str:
    """Return the cause of a failure with the rank that failed; empty without one."""
    failure = record.table_rows.failure
    return "" if failure is None else describe_cause(failure)


def list_chosen_settings(record: Record) -> dict[str, Any]:
    """Return the settings of a run by dotted key: those without defaults, and those that differ from the defaults."""
    from harness.registry import load_installed_strategy
    from harness.spec.spec import list_changed_settings

    strategy = get_name(record, "strategy")
    try:
        params = load_installed_strategy(strategy).Params().model_dump(mode="json")
    except (UserError, ValueError):  # another program, a missing plugin, or parameters without defaults
        params = {}
    chosen = {
        "strategy.name": strategy,
        "dataset.name": get_name(record, "dataset"),
        "ranks": record.spec.get("ranks"),
        "grid": format_grid_of(record),
        "machine": (record.spec.get("machine") or {}).get("name"),
        **list_changed_settings(record.spec, params),
    }
    return {key: value for key, value in chosen.items() if value not in (None, "")}


def format_time(seconds: float) -> str:
    """Format a time in UTC: 2026-11-26 19:45."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def make_show_command(record: Record, runs: Path, default: Path) -> str:
    """Return the command that shows a run of the folder `runs`. `default` is the folder of the project."""
    place = [] if runs.absolute() == default.absolute() else ["--runs", str(runs)]
    return shlex.join(["harness", "runs", "show", str(record.record["run_id"])[:ID_LENGTH], *place])
