"""harness run: one spec, or several one after the other, each to a whole record."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from harness.cli.options import Verbs, add_verb, say, show
from harness.cli.request import add_request, requested
from harness.errors import UserError
from harness.spec.root import project_root, results_folder
from harness.spec.spec import Spec
from harness.validation import validated


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "run", _run, "Train one spec and record everything about it.")
    parser.add_argument(
        "--spec",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="whole specs, run one after the other; exit 0 once every one has a record",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where run folders go (default: results/runs)"
    )
    add_request(parser)
    parser.add_argument(
        "--in-process", action="store_true", help="one rank in this very process, for debuggers"
    )
    parser.add_argument("--fresh", action="store_true", help="run even if a record of this spec exists")


def _run(options: argparse.Namespace) -> int:
    root = project_root(options.root)
    runs = options.out or results_folder(root) / "runs"
    if options.spec:
        return _run_all(root, [_spec_of_file(path) for path in options.spec], runs, options)
    from harness.launch.launch import launch, launch_here
    from harness.launch.series import settled

    spec = _spec_of_options(root, options)
    folder = runs / spec.run_id
    cached = not options.fresh and settled(folder)
    if not cached:
        launch_here(spec, root, runs) if options.in_process else launch(spec, root, runs, say)
    told = _told(folder, cached=cached)
    show(options, told, _text(told))
    return 0 if told["status"] == "ok" else 1


def _run_all(root: Path, specs: list[Spec], runs: Path, options: argparse.Namespace) -> int:
    """What is known of each is printed at once: whoever waits for hundreds wants to see them go by."""
    from harness.launch.series import series

    told, lacking = [], 0
    for outcome in series(specs, root, runs, say, fresh=options.fresh):
        if outcome.folder is None:
            lacking += 1
            print(f"{outcome.spec.label}: no record: {outcome.why}", file=sys.stderr, flush=True)
            continue
        told.append(_told(outcome.folder, cached=outcome.cached))
        if not options.json:
            print(_text(told[-1]), flush=True)
    if options.json:
        show(options, told[0] if len(told) == len(specs) == 1 else told, "")
    return 1 if lacking else 0


def _told(folder: Path, *, cached: bool) -> dict[str, Any]:
    return {"folder": str(folder), "cached": cached, **json.loads((folder / "record.json").read_text())}


def _spec_of_file(path: Path) -> Spec:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"The spec {path} cannot be read: {error.strerror}.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    return validated(Spec, data, str(path))


def _spec_of_options(root: Path, options: argparse.Namespace) -> Spec:
    from harness.run.opening import opened

    spec = requested(root, options)
    opened(root, spec)  # refused, if it is, before any rank is started
    return spec


def _text(record: dict[str, Any]) -> str:
    label, status = record["label"], record["status"]
    lines = [f"{label}: {status}{' (recorded earlier; --fresh runs it again)' if record['cached'] else ''}"]
    if status == "ok":
        summary = record["summary"]
        lines.append(
            f"  epoch {summary['epoch_seconds_median'] * 1e3:.3g} ms (median of {summary['epochs']}), "
            f"loss {summary['final_loss']:.4g}, {summary['words_received']:,.0f} words received an epoch"
        )
        accuracy = {split: summary.get(f"accuracy_{split}") for split in ("train", "valid", "test")}
        told = [f"{split} {value:.3f}" for split, value in accuracy.items() if value is not None]
        lines.append(f"  accuracy {', '.join(told)}" if told else "  no labelled vertices to judge by")
    elif record["error"]:
        error = record["error"]
        where = f"rank {error['rank']}: " if error["rank"] >= 0 else ""
        lines.append(f"  {where}{error['type']}: {error['message']}")
    return "\n".join([*lines, f"  {record['folder']}"])
