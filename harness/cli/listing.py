"""harness list and runs: the names that a spec can use, and the recorded runs."""

import argparse
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.cli.options import Verbs, add_verb, columns, moment, settings_page, several, show, tell
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
        _list,
        "List the strategies, datasets, machines or experiments, one on a line; the figures of the papers; or the keys "
        "of --set.",
        "`models` lists what each strategy trains. A figure of a paper has the experiment that reproduces it, or the "
        "reason why there is none.",
    )
    listing.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="strategies: with paper, promise, axes, models, and each parameter with its values and its meaning",
    )
    listing.add_argument("kind", choices=KINDS, help="the names to list")
    _add_runs(verbs)


def _add_runs(verbs: Verbs) -> None:
    about = "List the recorded runs, show one in plain words, or remove some."
    runs = verbs.add_parser("runs", help=about, description=about)
    actions = runs.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_verb(
        actions,
        "list",
        _list_runs,
        "List the recorded runs, the latest last.",
        "A row has the beginning of the id, the label, the status, the source, the median epoch, the words that the "
        "busiest rank sends in an epoch, the end of the run in UTC, and the size of the folder.",
    )
    showing = add_verb(
        actions,
        "show",
        _show_run,
        "Show what the record of one run says: settings, result, words, memory, failure, and how to repeat the run.",
    )
    showing.add_argument("run", metavar="RUN", help="a run folder, or the beginning of a run id")
    pruning = add_verb(
        actions,
        "prune",
        _prune_runs,
        "Remove run folders: those that all given options choose.",
        "Without --yes it only prints what it would remove. A folder without a readable record is never removed, nor "
        "is a run that is executed or written at the same time.",
    )
    pruning.add_argument(
        "--failed",
        action="store_true",
        help=f"runs that have no result and would be tried again, so not {', '.join(SETTLED)}",
    )
    pruning.add_argument(
        "--before", type=moment, metavar="DATE", help="runs that ended before a date, as 2026-11-24, in UTC"
    )
    pruning.add_argument("--yes", action="store_true", help="remove the folders")
    for parser in (listing, pruning):
        for name in ("strategy", "dataset"):
            parser.add_argument(
                f"--{name}",
                type=several(str),
                metavar="NAME",
                help=f"runs of this {name}, or of several: A,B",
            )
        parser.add_argument(
            "--status",
            type=several(str),
            metavar="STATUS",
            help=f"runs of this status, or of several: {', '.join(STATUSES)}",
        )
    for parser in (listing, showing, pruning):
        parser.add_argument(
            "--runs", type=Path, metavar="DIR", help="the folder of run folders (default: results/runs)"
        )


def _list(options: argparse.Namespace) -> int:
    if options.kind == "figures":
        return _figures(options)
    if options.kind == "models":
        return _models(options)
    if options.kind == "settings":
        return _settings(options)
    if options.kind == "strategies" and options.verbose:
        return _described(options)
    rows = _strategies() if options.kind == "strategies" else _cards(options.kind, find_root(options.root))
    show(options, [{"name": name, "about": about} for name, about in rows], columns(rows))
    return 0


def _figures(options: argparse.Namespace) -> int:
    from harness.experiment.paper_figures import list_paper_figures

    figures = list_paper_figures(find_root(options.root))
    rows = [
        (each.id, f"{each.paper}, {each.number}", each.title, each.drawing, each.reproduction)
        for each in figures
    ]
    show(options, [each.model_dump() for each in figures], columns(rows))
    return 0


def _models(options: argparse.Namespace) -> int:
    from harness.experiment.trained_models import format_cells, list_trained_models

    rows = list_trained_models(find_root(options.root))
    missing = [f"{row.strategy}: {row.missing}" for row in rows if row.missing]
    page = "\n\n".join([columns(format_cells(rows)), *missing])
    show(options, [{**row.as_row(), "missing": row.missing} for row in rows], page)
    return 0


def _settings(options: argparse.Namespace) -> int:
    from harness.spec.spec import list_spec_settings

    settings = list_spec_settings()
    show(options, [setting._asdict() for setting in settings], settings_page(settings))
    return 0


def _described(options: argparse.Namespace) -> int:
    from harness.experiment.trained_models import describe_strategies

    found, pages = describe_strategies(), []
    for each in found:
        over = f", partitioned over {each.partitioned_over}" if each.partitioned_over else ""
        facts = [
            ("paper", each.paper or "none is named"),
            ("numbers", f"{each.promise}, on {each.trains_on}"),
            ("axes", f"{', '.join(each.axes)}{over}"),
            ("models", ", ".join(each.models)),
        ]
        lines = [f"{each.name}: {each.about}", *(f"  {key:<8} {value}" for key, value in facts)]
        pages.append("\n".join([*lines, settings_page(each.parameters, "  ")]).rstrip())
    data = [{**each._asdict(), "parameters": [key._asdict() for key in each.parameters]} for each in found]
    show(options, data, "\n\n".join(pages))
    return 0


def _strategies() -> list[tuple[str, str]]:
    from harness.registry import registered_strategies

    return [(point.name, point.value) for point in registered_strategies()]


def _cards(kind: str, root: Path) -> list[tuple[str, str]]:
    paths = list_dataset_cards(root) if kind == "datasets" else sorted((root / CARDS[kind]).glob("*.yaml"))
    return [(path.stem, " ".join(_about(path).split())) for path in paths]


def _about(path: Path) -> str:
    """The description in a file; or the reason why the file cannot be read, so that the others are still listed."""
    try:
        return str(read_yaml(path, path.name).get("description", ""))
    except UserError as error:
        return str(error)


# The recorded runs.


def _runs_folder(options: argparse.Namespace) -> Path:
    folder: Path = options.runs or find_results_folder(find_root(options.root)) / "runs"
    return folder


def _chosen_runs(options: argparse.Namespace, runs: Path) -> list[Record]:
    """The runs that the options choose, in the order in which they ended. Folders that cannot be read are named."""
    for status in set(options.status or ()) - set(STATUSES):
        raise UserError(f"--status {status} is not accepted: a status is one of {', '.join(STATUSES)}.")
    if options.runs and not runs.is_dir():
        raise UserError(
            f"The folder of runs {runs} does not exist. `harness run` makes it, or name another one with --runs."
        )
    records, refused = read_records(list_complete_folders(runs))
    if refused:
        tell(escape_line(describe_refused(refused)))
    chosen = [
        record
        for record in records
        if not (options.status and record.record["status"] not in options.status)
        and all(
            not getattr(options, key) or _name_of(record, key) in getattr(options, key)
            for key in ("strategy", "dataset")
        )
    ]
    return sorted(chosen, key=lambda record: (record.ended, record.folder.name))


def _name_of(record: Record, key: str) -> str:
    """The name of the strategy or the dataset, which the spec of another program may lack."""
    return str((record.spec.get(key) or {}).get("name", ""))


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _run_row(record: Record) -> dict[str, Any]:
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


def _runs_page(rows: list[dict[str, Any]]) -> str:
    """A line for each run. Ids are shortened to what tells them apart, and to no fewer than eight characters."""
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
            _when(row["ended"]),
            format_bytes(row["bytes"]),
        )
        for row in rows
    ]
    return columns([head, *lines])


def _list_runs(options: argparse.Namespace) -> int:
    runs = _runs_folder(options)
    rows = [_run_row(record) for record in _chosen_runs(options, runs)]
    total = f"{format_count(len(rows), 'run')}, {format_bytes(sum(row['bytes'] for row in rows))}, in {runs}"
    show(options, rows, f"{_runs_page(rows)}\n\n{total}" if rows else f"no run of these in {runs}")
    return 0


def _prune_runs(options: argparse.Namespace) -> int:
    criteria = ("failed", "before", "strategy", "dataset", "status")
    if not any(getattr(options, name) for name in criteria):
        named = ", ".join(f"--{name}" for name in criteria)
        raise UserError(
            f"`harness runs prune` needs at least one of {named}: it never removes all runs at once."
        )
    runs = _runs_folder(options)
    under_way = find_active_runs(runs)
    chosen = [
        record
        for record in _chosen_runs(options, runs)
        if not (options.failed and record.record["status"] in SETTLED)
        and not (options.before and record.ended >= options.before.timestamp())
    ]
    rows = [{**_run_row(record), "removed": False, "why": ""} for record in chosen]
    for row, record in zip(rows, chosen, strict=True):
        if record.record["run_id"] in under_way:
            row["why"] = "the run is executed or written now"
        elif options.yes:
            row["removed"] = remove_run(record)
            row["why"] = "" if row["removed"] else "the folder is a link, not named by its run, or changed"
    show(options, rows, _pruned_page(rows, runs, done=options.yes))
    return 0


def _pruned_page(rows: list[dict[str, Any]], runs: Path, *, done: bool) -> str:
    gone = [row for row in rows if not row["why"]]
    size = f"{format_count(len(gone), 'run')}, {format_bytes(sum(row['bytes'] for row in gone))}, in {runs}"
    kept = [escape_line(f"kept {row['run_id']} ({row['label']}): {row['why']}") for row in rows if row["why"]]
    after = "`harness collect` makes the tables anew." if done else "Nothing was removed; --yes removes them."
    total = (
        [f"{'removed' if done else 'would remove'} {size}. {after}"]
        if gone
        else [f"nothing to remove in {runs}"]
    )
    return "\n".join([*([_runs_page(gone), ""] if gone else []), *kept, *total])


def _show_run(options: argparse.Namespace) -> int:
    from harness.report.run_panels import facts, largest, origin
    from harness.results.collect import describe_cause, load_side_of_run

    folder = find_run(_runs_folder(options), options.run)
    record = read_record(folder)
    run = load_side_of_run(folder).runs.iloc[0]
    error, command = record.record["error"], record.record["provenance"].get("command")
    ended = f"{_when(record.ended)} UTC, {format_bytes(record.bytes)}"
    parts = {
        "": [
            ("id", record.record["run_id"]),
            ("source", f"{run.source}, launch {run.launch}"),
            ("ended", ended),
        ],
        "settings beside the defaults": [
            (key, str(value)) for key, value in _beside_defaults(record).items()
        ],
        "result": facts(run),
        "memory of the rank that has most": [
            (name, format_bytes(size)) for name, size in largest(record.table("memory"))
        ],
        "origin": origin(run),
        "failure": [("cause", describe_cause(run)), ("began in", run["error.origin"])] if error else [],
        "log": _log(record),
        "again": [("typed", command or ""), ("repeat", _repeat(record))],
    }
    width = max(len(key) for rows in parts.values() for key, _ in rows)
    lines = [escape_line(f"{record.record['label']}: {record.record['status']}")]
    for title, rows in parts.items():
        kept = [f"  {escape_line(key):<{width}}  {escape_line(value)}" for key, value in rows if value]
        lines += [*([title] if title and kept else []), *kept]
    document = {
        "folder": str(folder),
        "repeat": _repeat(record),
        "beside_defaults": _beside_defaults(record),
        **record.record,
    }
    show(options, document, "\n".join([*lines, f"  {folder}"]))
    return 0


def _beside_defaults(record: Record) -> dict[str, Any]:
    """The keys of the spec that a user chose, and those whose values are not the defaults, by dotted names."""
    from harness.registry import load_installed_strategy
    from harness.spec.dataset import DatasetChoice
    from harness.spec.spec import Measure, ModelChoice, Spec, Training

    strategy, dataset = _name_of(record, "strategy"), _name_of(record, "dataset")
    usual: dict[str, Any] = {
        "dataset": DatasetChoice(name=dataset).model_dump(mode="json") if dataset else {},
        **{
            key: kind().model_dump(mode="json")
            for key, kind in (("model", ModelChoice), ("training", Training), ("measure", Measure))
        },
        **{key: Spec.model_fields[key].default for key in ("protocol", "precision", "seed", "launch")},
    }
    try:
        usual["strategy"] = {"params": load_installed_strategy(strategy).Params().model_dump(mode="json")}
    except (UserError, ValueError):  # another program, a plugin that is gone, or parameters without defaults
        usual["strategy"] = {}
    chosen = {
        "strategy.name": strategy,
        "dataset.name": dataset,
        "ranks": record.spec.get("ranks"),
        "grid": ", ".join(f"{axis} {size}" for axis, size in (record.spec.get("grid") or {}).items()),
        "machine": (record.spec.get("machine") or {}).get("name"),
    }
    given = {key: value for key, value in record.spec.items() if key not in ("grid", "ranks", "machine")}
    defaults = _dotted(usual)
    more = {
        key: value
        for key, value in _dotted(given).items()
        if key not in chosen and value is not None and defaults.get(key) != value
    }
    return {key: value for key, value in {**chosen, **more}.items() if value not in (None, "")}


def _dotted(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted names."""
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        leaves |= (
            _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
        )
    return leaves


LAST_LINES = 12
"""The lines of a log that are shown."""


def _log(record: Record) -> list[tuple[str, str]]:
    """The end of what a failed rank left; the log itself is removed with the scratch folder of the launch."""
    trace = (record.record["error"] or {}).get("trace") or ""
    lines = trace.rstrip().splitlines()
    if not lines:
        return []
    place = f"error.trace in {record.folder / 'record.json'}"
    return [("kept as", place), *(("", line) for line in lines[-LAST_LINES:])]


def _repeat(record: Record) -> str:
    """The command that makes the run again, from its own spec."""
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
