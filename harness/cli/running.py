"""harness run: one spec, launched here, to a whole record."""

import argparse
import json
from pathlib import Path
from typing import Any

from harness.cli.options import Verbs, add_verb, say, show
from harness.cli.request import add_request, requested
from harness.errors import UserError
from harness.spec.root import project_root, results_folder
from harness.spec.spec import Spec
from harness.validation import validated

SETTLED = ("ok", "oom", "timeout")
"""Statuses that are not asked for again. What refused a run may have been mended since, and so may what failed it."""


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "run", _run, "Train one spec and record everything about it.")
    parser.add_argument("--spec", type=Path, metavar="FILE", help="a whole spec; exit 0 once a record exists")
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
    spec = _spec_of_file(options.spec) if options.spec else _spec_of_options(root, options)
    runs = options.out or results_folder(root) / "runs"
    folder, cached = _record(spec, root, runs, options)
    record = json.loads((folder / "record.json").read_text())
    show(options, {"folder": str(folder), "cached": cached, **record}, _text(folder, record, cached))
    return 0 if options.spec or record["status"] == "ok" else 1


def _record(spec: Spec, root: Path, runs: Path, options: argparse.Namespace) -> tuple[Path, bool]:
    """The folder of a settled record of this spec, an older one if there is one."""
    from harness.launch.local import launch
    from harness.results.record import read_record

    folder = runs / spec.run_id
    if folder.is_dir() and not options.fresh and read_record(folder).record["status"] in SETTLED:
        return folder, True
    return launch(spec, root, runs, say, in_process=options.in_process), False


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


def _text(folder: Path, record: dict[str, Any], cached: bool) -> str:
    label, status = record["label"], record["status"]
    lines = [f"{label}: {status}{' (recorded earlier; --fresh runs it again)' if cached else ''}"]
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
    return "\n".join([*lines, f"  {folder}"])
