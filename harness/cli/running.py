"""harness run: one spec, or several one after the other, each to a whole record."""

import argparse
import sys
from pathlib import Path
from typing import Any

from harness.cli.request import Verbs, add_request, add_verb, requested, say, show
from harness.documents import read_json
from harness.results.record import read_record
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
        return _run_all(root, runs, options)
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


def _run_all(root: Path, runs: Path, options: argparse.Namespace) -> int:
    """Prints what is known of each run as soon as it is known.

    A file that holds no spec, a run that leaves no record and a record that cannot be read keep no other from its turn.
    A file named alone is refused as any other input is.
    """
    from harness.launch.series import named_reason, series

    told, lacking = [], 0

    def lack(name: str, why: str) -> None:
        nonlocal lacking
        lacking += 1
        print(f"{name}: no record: {why}", file=sys.stderr, flush=True)

    specs = []
    for path in options.spec:
        try:
            specs.append(_spec_of_file(path))
        except Exception as error:
            if len(options.spec) == 1:
                raise
            lack(str(path), named_reason(error))
    for outcome in series(specs, root, runs, say, fresh=options.fresh):
        try:
            if outcome.folder is None:
                lack(outcome.spec.label, outcome.why)
                continue
            told.append(_told(outcome.folder, cached=outcome.cached))
            if not options.json:
                print(_text(told[-1]), flush=True)
        except Exception as error:
            lack(outcome.spec.label, named_reason(error))
    if options.json:
        show(options, told[0] if len(told) == len(options.spec) == 1 else told, "")
    return 1 if lacking else 0


def _told(folder: Path, *, cached: bool) -> dict[str, Any]:
    """The record, and of its spec how many epochs were asked for."""
    whole = read_record(folder)
    asked = whole.spec["training"]["epochs"]
    return {"folder": str(folder), "cached": cached, "epochs_asked": asked, **whole.record}


def _spec_of_file(path: Path) -> Spec:
    return validated(Spec, read_json(path, f"The spec {path}"), str(path))


def _spec_of_options(root: Path, options: argparse.Namespace) -> Spec:
    from harness.run.opening import opened

    spec = requested(root, options)
    opened(root, spec)  # refused, if it is, before any rank is started
    return spec


def _text(record: dict[str, Any]) -> str:
    label, status = record["label"], record["status"]
    lines = [f"{label}: {status}{' (recorded earlier; --fresh runs it again)' if record['cached'] else ''}"]
    if summary := record["summary"]:
        lines += _summary(summary, record["epochs_asked"])
    if error := record["error"]:
        where = f"rank {error['rank']}: " if error["rank"] >= 0 else ""
        lines.append(f"  {where}{error['type']}: {error['message']}")
    return "\n".join([*lines, f"  {record['folder']}"])


def _summary(summary: dict[str, Any], asked: int) -> list[str]:
    """What there is of times, loss and accuracies. Any number may be null."""
    lines, done = [], summary.get("epochs", 0)
    if (seconds := summary.get("epoch_seconds_median")) is not None:
        loss, words = summary.get("final_loss"), summary.get("words_received")
        lines.append(
            f"  epoch {seconds * 1e3:.3g} ms (median of {done}), "
            f"loss {'not finite' if loss is None else f'{loss:.4g}'}"
            + (f", {words:,.0f} words received an epoch" if words is not None else "")
        )
    if summary.get("seconds_to_target") is not None and done < asked:
        lines.append(f"  reached its target accuracy after {done} of {asked} epochs, and stopped there")
    if (seconds := summary.get("setup_seconds")) is not None:
        lines.append(f"  setup {seconds:.3g} s before the first epoch, excluded from all other times")
    accuracy = {split: summary.get(f"accuracy_{split}") for split in ("train", "valid", "test")}
    told = [f"{split} {value:.3f}" for split, value in accuracy.items() if value is not None]
    if told:
        lines.append(f"  accuracy {', '.join(told)}")
    elif lines:
        lines.append("  no accuracy: no labelled vertices, or no evaluation")
    return lines
