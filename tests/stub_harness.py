"""A `harness` that takes no time: the verbs the workflow calls, their files, and a journal of what was asked.

It knows nothing of graphs or training. The environment says how it behaves: STUB_JOURNAL names the journal,
STUB_SECONDS how long a run or a build takes, STUB_TOGETHER how many builds wait for each other, STUB_BROKEN a strategy
whose runs leave no record, STUB_FAILED one whose runs leave a record of a failure.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from itertools import product
from pathlib import Path

import yaml

ORDER = {"permutation": "none", "seed": 0, "partition": "block", "parts": 0}
FIGURES = ("received", "strong-scaling", "strong-scaling-tiny-sbm")
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'


def note(event: str, subject: str) -> None:
    line = json.dumps({"event": event, "subject": subject, "time": time.time()}) + "\n"
    with Path(os.environ["STUB_JOURNAL"]).open("a") as journal:
        journal.write(line)


def canonical_hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def named(choice: object) -> dict:
    return choice if isinstance(choice, dict) else {"name": choice}


def specs(entry: dict) -> list[dict]:
    """Every combination of an entry's lists, less the excluded ones."""
    keys = [key for key in entry if key != "exclude"]
    combinations = (
        dict(zip(keys, values, strict=True)) for values in product(*(listed(entry[k]) for k in keys))
    )
    return [c for c in combinations if not any(x.items() <= c.items() for x in entry.get("exclude", []))]


def plan(options: argparse.Namespace) -> None:
    for file, out in zip(options.experiment, options.out, strict=True):
        plan_one(Path(file), Path(out), options)


def plan_one(file: Path, out: Path, options: argparse.Namespace) -> None:
    experiment = yaml.safe_load(file.read_text())
    note("plan", experiment["name"])
    if options.scale == "published":
        experiment = experiment["published"]
    runs = []
    for spec in (spec for entry in experiment["runs"] for spec in specs(entry)):
        spec["dataset"] = {**ORDER, **named(spec["dataset"])}
        spec["machine"] = {"name": experiment.get("machine", options.machine), "threads_per_rank": 1}
        spec["ranks"] = spec.get("ranks", 1)
        run_id = canonical_hash(spec)[:16]
        runs.append({"run_id": run_id, "label": f"label-of-{run_id}", "spec": spec})
    text = json.dumps({"schema": 2, "experiment": "smoke", "cost": "3 node-hours predicted", "runs": runs})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)


def status_of(folder: Path) -> str:
    return json.loads((folder / "record.json").read_text())["status"]


def run(options: argparse.Namespace) -> None:
    specs = [json.loads(Path(path).read_text()) for path in options.spec]
    broken = [spec for spec in specs if spec["strategy"] == os.environ.get("STUB_BROKEN")]
    for spec in specs:
        if spec not in broken:
            run_one(spec, options)
    if broken:
        sys.exit(f"no record could be written for {len(broken)} of {len(specs)} runs")


def run_one(spec: dict, options: argparse.Namespace) -> None:
    run_id = canonical_hash(spec)[:16]
    folder = Path(options.out) / run_id
    if folder.exists() and status_of(folder) != "failed":
        note("kept", run_id)
        return
    note("start", run_id)
    time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
    unfinished = folder.with_suffix(f".{os.getpid()}")
    unfinished.mkdir(parents=True)
    status = "failed" if spec["strategy"] == os.environ.get("STUB_FAILED") else "ok"
    (unfinished / "record.json").write_text(json.dumps({"status": status}))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    note("finish", run_id)


def collect(options: argparse.Namespace) -> None:
    wanted = [run["run_id"] for run in json.loads(Path(options.plan).read_text())["runs"]]
    statuses = [status_of(Path(options.runs) / run_id) for run_id in wanted]
    if options.verify:
        sys.exit(int("failed" in statuses))
    Path(options.out).mkdir(parents=True, exist_ok=True)
    for table in ("runs", "failures", "epochs", "ledger", "accuracy", "memory", "utilisation"):
        (Path(options.out) / f"{table}.parquet").write_text(table)


def claims(options: argparse.Namespace) -> None:
    if options.records:
        Path(options.records).mkdir(parents=True)
        return
    note("claims", " ".join(options.figure))
    Path(options.out).write_text("claims")


def predict(options: argparse.Namespace) -> None:
    Path(options.out).mkdir(parents=True)


def report(options: argparse.Namespace) -> None:
    Path(options.out).write_text("<html></html>")
    figures = Path(options.figures)
    figures.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        for kind in ("pdf", "png", "svg"):
            (figures / f"{name}.{kind}").write_text(DRAWING)
        (figures / f"{name}.txt").write_text(f"How to read {name}.\n\nShown: _*.\n")


def wait_for_builds(count: int) -> None:
    """Returns once so many builds have begun."""
    journal, until = Path(os.environ["STUB_JOURNAL"]), time.monotonic() + 60
    while count and journal.read_text().count('"event": "build"') < count:
        if time.monotonic() > until:
            sys.exit(f"{count} builds never were under way at once")
        time.sleep(0.02)


def data(options: argparse.Namespace) -> None:
    if options.share:
        note("share", f"{options.name} {options.share}")
        return
    note(options.action, options.name)
    if options.action == "build":
        wait_for_builds(int(os.environ.get("STUB_TOGETHER", "0")))
        time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
        note("order", " ".join(str(getattr(options, option)) for option in ORDER))


def main() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(required=True)
    for verb in (plan, run, collect, claims, predict, report):
        words = verbs.add_parser(verb.__name__)
        words.set_defaults(do=verb)
        words.add_argument("--spec", nargs="+")
        words.add_argument("--job")
        words.add_argument("--machine", default="local")
        words.add_argument("--pictures", default="all")
        for option in ("plan", "runs", "tables", "figures", "records", "predictions"):
            words.add_argument(f"--{option}")
        words.add_argument("--out", nargs="+" if verb is plan else None)
        for option in ("experiment", "figure", "extra"):
            words.add_argument(f"--{option}", nargs="+")
        for option in ("verify", "quick", "build"):
            words.add_argument(f"--{option}", action="store_true")
        words.add_argument("--scale", default="laptop")
    words = verbs.add_parser("data")
    words.set_defaults(do=data)
    words.add_argument("action")
    words.add_argument("name")
    for option in (*ORDER, "share"):
        words.add_argument(f"--{option}")
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
