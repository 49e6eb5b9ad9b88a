"""harness list and runs: lists the names that a spec can use, and lists, shows and removes recorded runs."""

import argparse
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.cli.options import (
    Verbs,
    add_verb,
    comma_list,
    format_columns,
    format_settings,
    print_answer,
    print_message,
    utc_datetime,
)
from harness.documents import read_yaml
from harness.errors import UserError
from harness.files import list_complete_folders
from harness.formatting import format_bytes, format_count
from harness.results.record import (
    Record,
    describe_refused,
    find_active_runs,
    find_run,
    read_record,
    read_records,
    remove_run,
)
from harness.results.schema import SETTLED, STATUSES
from harness.spec.root import find_results_folder, find_root, list_dataset_cards
from harness.untrusted import escape_line

CARDS = {
    "machines": "config/machines",
    "experiments": "workflows/experiments",
}
KINDS = ("strategies", "models", "datasets", *CARDS, "figures", "settings")


def add_verbs(verbs: Verbs) -> None:
    listing = add_verb(
        verbs,
        "list",
        _list_names,
        "List the strategies, datasets, machines, experiments, figures of papers, or keys of --set.",
        "`models` lists the models that each strategy trains. A figure of a paper is listed with the experiment that "
        "reproduces it, or with the reason why none does.",
    )
    listing.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="strategies: also print the paper, promise, axes, models, and each parameter with its values and meaning",
    )
    listing.add_argument("kind", choices=KINDS, help="the names to list")
    _add_runs(verbs)


def _add_runs(verbs: Verbs) -> None:
    about = "List the recorded runs, show one, or remove some."
    runs = verbs.add_parser("runs", help=about, description=about)
    actions = runs.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_verb(
        actions,
        "list",
        _list_runs,
        "List the recorded runs, the latest last.",
        "A row has the start of the id, the label, the status, the source, the median epoch time, the words that the "
        "busiest rank sends per epoch, the end of the run in UTC, and the size of the folder.",
    )
    showing = add_verb(
        actions,
        "show",
        _show_run,
        "Show the record of a run: settings, result, words, memory, failure, and how to repeat the run.",
    )
    showing.add_argument("run", metavar="RUN", help="a run folder, or the start of a run id")
    pruning = add_verb(
        actions,
        "prune",
        _prune_runs,
        "Remove the run folders that match all given options.",
        "Without --yes it only prints what it would remove. It never removes a folder without a readable record, or a "
        "run that is in progress.",
    )
    pruning.add_argument(
        "--failed",
        action="store_true",
        help=f"runs without a result, which would be tried again: any status except {', '.join(SETTLED)}",
    )
    pruning.add_argument(
        "--before",
        type=utc_datetime,
        metavar="DATE",
        help="runs that ended before a date such as 2026-11-24, in UTC",
    )
    pruning.add_argument("--yes", action="store_true", help="remove the folders")
    for parser in (listing, pruning):
        for name in ("strategy", "dataset"):
            parser.add_argument(
                f"--{name}",
                type=comma_list(str),
                metavar="NAME",
                help=f"runs of this {name}, or of several separated by commas",
            )
        parser.add_argument(
            "--status",
            type=comma_list(str),
            metavar="STATUS",
            help=f"runs with this status, or with several separated by commas: {', '.join(STATUSES)}",
        )
    for parser in (listing, showing, pruning):
        parser.add_argument(
            "--runs", type=Path, metavar="DIR", help="the folder of run folders (default: results/runs)"
        )


def _list_names(options: argparse.Namespace) -> int:
    if options.kind == "figures":
        return _list_figures(options)
    if options.kind == "models":
        return _list_models(options)
    if options.kind == "settings":
        return _list_settings(options)
    if options.kind == "strategies" and options.verbose:
        return _describe_strategies(options)
    rows = (
        _read_strategies()
        if options.kind == "strategies"
        else _read_cards(options.kind, find_root(options.root))
    )
    print_answer(options, [{"name": name, "about": about} for name, about in rows], format_columns(rows))
    return 0


def _list_figures(options: argparse.Namespace) -> int:
    from harness.experiment.paper_figures import list_paper_figures

    figures = list_paper_figures(find_root(options.root))
    rows = [
        (each.id, f"{each.paper}, {each.number}", each.title, each.drawing, each.reproduction)
        for each in figures
    ]
    print_answer(options, [each.model_dump() for each in figures], format_columns(rows))
    return 0


def _list_models(options: argparse.Namespace) -> int:
    from harness.experiment.trained_models import format_cells, list_trained_models

    rows = list_trained_models(find_root(options.root))
    missing = [f"{row.strategy}: {row.missing}" for row in rows if row.missing]
    page = "\n\n".join([format_columns(format_cells(rows)), *missing])
    print_answer(options, [{**row.as_row(), "missing": row.missing} for row in rows], page)
    return 0


def _list_settings(options: argparse.Namespace) -> int:
    from harness.spec.spec import list_spec_settings

    settings = list_spec_settings()
    print_answer(options, [setting._asdict() for setting in settings], format_settings(settings))
    return 0


def _describe_strategies(options: argparse.Namespace) -> int:
    from harness.experiment.trained_models import describe_strategies

    found, pages = describe_strategies(), []
    for each in found:
        over = f", partitioned over {each.partitioned_over}" if each.partitioned_over else ""
        facts = [
            ("paper", each.paper or "none"),
            ("numbers", f"{each.promise}, on {each.trains_on}"),
            ("axes", f"{', '.join(each.axes)}{over}"),
            ("models", ", ".join(each.models)),
        ]
        lines = [f"{each.name}: {each.about}", *(f"  {key:<8} {value}" for key, value in facts)]
        pages.append("\n".join([*lines, format_settings(each.parameters, "  ")]).rstrip())
    data = [{**each._asdict(), "parameters": [key._asdict() for key in each.parameters]} for each in found]
    print_answer(options, data, "\n\n".join(pages))
    return 0


def _read_strategies() -> list[tuple[str, str]]:
    from harness.registry import registered_strategies

    return [(point.name, point.value) for point in registered_strategies()]


def _read_cards(kind: str, root: Path) -> list[tuple[str, str]]:
    paths = list_dataset_cards(root) if kind == "datasets" else sorted((root / CARDS[kind]).glob("*.yaml"))
    return [(path.stem, " ".join(_read_description(path).split())) for path in paths]


def _read_description(path: Path) -> str:
    """Return the description in a card, or the reason why it cannot be read, so that the others are still listed."""
    try:
        return str(read_yaml(path, path.name).get("description", ""))
    except UserError as error:
        return str(error)


# The recorded runs.


def _get_runs_folder(options: argparse.Namespace) -> Path:
    folder: Path = options.runs or find_results_folder(find_root(options.root)) / "runs"
    return folder


def _select_runs(options: argparse.Namespace, runs: Path) -> list[Record]:
    """Return the runs that match the options, in the order in which they ended. Report unreadable folders to stderr."""
    for status in set(options.status or ()) - set(STATUSES):
        raise UserError(f"--status {status} is not accepted: a status is one of {', '.join(STATUSES)}.")
    if options.runs and not runs.is_dir():
        raise UserError(
            f"The folder of runs {runs} does not exist. `harness run` makes it, or name another one with --runs."
        )
    records, refused = read_records(list_complete_folders(runs))
    if refused:
        print_message(escape_line(describe_refused(refused)))
    chosen = [
        record
        for record in records
        if not (options.status and record.record["status"] not in options.status)
        and all(
            not getattr(options, key) or _get_name(record, key) in getattr(options, key)
            for key in ("strategy", "dataset")
        )
    ]
    return sorted(chosen, key=lambda record: (record.ended, record.folder.name))


def _get_name(record: Record, key: str) -> str:
    """Return the name of the strategy or the dataset; empty if the record of another program lacks it."""
    return str((record.spec.get(key) or {}).get("name", ""))


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _make_run_row(record: Record) -> dict[str, Any]:
    summary = record.record["summary"]
    return {
        "run_id": record.record["run_id"],
        "label": record.record["label"],
        "status": record.record["status"],
        "source": record.record["source"],
        "epoch_seconds_median": summary.get("epoch_seconds_median"),
        "words_payload": summary.get("words_payload"),
        "ended": record.ended,
        "bytes": record.bytes,
        "folder": str(record.folder),
    }


def _format_runs(rows: list[dict[str, Any]]) -> str:
    """Return a table of runs. Ids are cut to the length that distinguishes them, at least eight characters."""
    ids = sorted(row["run_id"] for row in rows)
    width = 8
    while width < 64 and len({run_id[:width] for run_id in ids}) < len(set(ids)):
        width += 1
    head = ("run", "label", "status", "source", "epoch, ms", "words", "ended (UTC)", "size")
    lines = [
        (
            row["run_id"][:width],
            row["label"],
            row["status"],
            row["source"],
            "" if row["epoch_seconds_median"] is None else f"{1e3 * row['epoch_seconds_median']:.4g}",
            "" if row["words_payload"] is None else f"{row['words_payload']:,.0f}",
            _format_time(row["ended"]),
            format_bytes(row["bytes"]),
        )
        for row in rows
    ]
    return format_columns([head, *lines])


def _list_runs(options: argparse.Namespace) -> int:
    runs = _get_runs_folder(options)
    rows = [_make_run_row(record) for record in _select_runs(options, runs)]
    total = f"{format_count(len(rows), 'run')}, {format_bytes(sum(row['bytes'] for row in rows))}, in {runs}"
    print_answer(options, rows, f"{_format_runs(rows)}\n\n{total}" if rows else f"no matching run in {runs}")
    return 0


def _prune_runs(options: argparse.Namespace) -> int:
    criteria = ("failed", "before", "strategy", "dataset", "status")
    if not any(getattr(options, name) for name in criteria):
        named = ", ".join(f"--{name}" for name in criteria)
        raise UserError(
            f"`harness runs prune` needs at least one of {named}: it never removes all runs at once."
        )
    runs = _get_runs_folder(options)
    under_way = find_active_runs(runs)
    chosen = [
        record
        for record in _select_runs(options, runs)
        if not (options.failed and record.record["status"] in SETTLED)
        and not (options.before and record.ended >= options.before.timestamp())
    ]
    rows = [{**_make_run_row(record), "removed": False, "why": ""} for record in chosen]
    for row, record in zip(rows, chosen, strict=True):
        if record.record["run_id"] in under_way:
            row["why"] = "the run is in progress"
        elif options.yes:
            row["removed"] = remove_run(record)
            row["why"] = "" if row["removed"] else "the folder is a link, not named by its run, or changed"
    print_answer(options, rows, _format_pruned_runs(rows, runs, done=options.yes))
    return 0


def _format_pruned_runs(rows: list[dict[str, Any]], runs: Path, *, done: bool) -> str:
    gone = [row for row in rows if not row["why"]]
    size = f"{format_count(len(gone), 'run')}, {format_bytes(sum(row['bytes'] for row in gone))}, in {runs}"
    kept = [escape_line(f"kept {row['run_id']} ({row['label']}): {row['why']}") for row in rows if row["why"]]
    after = "`harness collect` updates the tables." if done else "Nothing was removed; --yes removes them."
    total = (
        [f"{'removed' if done else 'would remove'} {size}. {after}"]
        if gone
        else [f"nothing to remove in {runs}"]
    )
    return "\n".join([*([_format_runs(gone), ""] if gone else []), *kept, *total])


def _show_run(options: argparse.Namespace) -> int:
    from harness.report.run_panels import list_facts, list_largest_tensors, list_origin
    from harness.results.collect import describe_cause, load_side_of_run, make_failure

    folder = find_run(_get_runs_folder(options), options.run)
    record = read_record(folder)
    run = load_side_of_run(folder).runs.iloc[0]
    failure = make_failure(record)
    command = record.record["provenance"].get("command")
    ended = f"{_format_time(record.ended)} UTC, {format_bytes(record.bytes)}"
    parts = {
        "": [
            ("id", record.record["run_id"]),
            ("source", f"{run.source}, launch {run.launch}"),
            ("ended", ended),
        ],
        "settings": [(key, str(value)) for key, value in _list_chosen_settings(record).items()],
        "result": list_facts(run),
        "maximum memory over the ranks": [
            (name, format_bytes(size)) for name, size in list_largest_tensors(record.table("memory"))
        ],
        "origin": list_origin(run),
        "failure": [("cause", describe_cause(failure)), ("began in", failure.began_in)]
        if failure is not None
        else [],
        "log": _read_trace(record),
        "again": [("typed", command or ""), ("repeat", _make_repeat_command(record))],
    }
    width = max(len(key) for rows in parts.values() for key, _ in rows)
    lines = [escape_line(f"{record.record['label']}: {record.record['status']}")]
    for title, rows in parts.items():
        kept = [f"  {escape_line(key):<{width}}  {escape_line(value)}" for key, value in rows if value]
        lines += [*([title] if title and kept else []), *kept]
    document = {
        "folder": str(folder),
        "repeat": _make_repeat_command(record),
        "beside_defaults": _list_chosen_settings(record),
        **record.record,
    }
    print_answer(options, document, "\n".join([*lines, f"  {folder}"]))
    return 0


def _list_chosen_settings(record: Record) -> dict[str, Any]:
    """Return the settings of a run by dotted key: those without defaults, and those that differ from the defaults."""
    from harness.registry import load_installed_strategy
    from harness.spec.dataset import DatasetChoice
    from harness.spec.spec import Measure, ModelChoice, Spec, Training

    strategy, dataset = _get_name(record, "strategy"), _get_name(record, "dataset")
    default_sections: dict[str, Any] = {
        "dataset": DatasetChoice(name=dataset).model_dump(mode="json") if dataset else {},
        **{
            key: kind().model_dump(mode="json")
            for key, kind in (("model", ModelChoice), ("training", Training), ("measure", Measure))
        },
        **{key: Spec.model_fields[key].default for key in ("protocol", "precision", "seed", "launch")},
    }
    try:
        default_sections["strategy"] = {
            "params": load_installed_strategy(strategy).Params().model_dump(mode="json")
        }
    except (UserError, ValueError):  # another program, a missing plugin, or parameters without defaults
        default_sections["strategy"] = {}
    chosen = {
        "strategy.name": strategy,
        "dataset.name": dataset,
        "ranks": record.spec.get("ranks"),
        "grid": ", ".join(f"{axis} {size}" for axis, size in (record.spec.get("grid") or {}).items()),
        "machine": (record.spec.get("machine") or {}).get("name"),
    }
    given = {key: value for key, value in record.spec.items() if key not in ("grid", "ranks", "machine")}
    defaults = _flatten_keys(default_sections)
    changed = {
        key: value
        for key, value in _flatten_keys(given).items()
        if key not in chosen and value is not None and defaults.get(key) != value
    }
    return {key: value for key, value in {**chosen, **changed}.items() if value not in (None, "")}


def _flatten_keys(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        leaves |= (
            _flatten_keys(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return leaves


LAST_LINES = 12
"""The number of lines of a trace that are shown."""


def _read_trace(record: Record) -> list[tuple[str, str]]:
    """Return the last lines of the trace of a failed rank, and where the whole trace is."""
    trace = (record.record["error"] or {}).get("trace") or ""
    lines = trace.rstrip().splitlines()
    if not lines:
        return []
    place = f"error.trace in {record.folder / 'record.json'}"
    return [("kept as", place), *(("", line) for line in lines[-LAST_LINES:])]


def _make_repeat_command(record: Record) -> str:
    """Return the command that repeats a measured run from its spec; empty for other records."""
    if record.record["source"] != "measured":
        return ""
    return shlex.join(
        [
            "harness",
            "run",
            "--spec",
            str(record.folder / "spec.json"),
            "--out",
            str(record.folder.parent),
            "--fresh",
        ]
    )
