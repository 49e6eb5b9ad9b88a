"""The runs of an experiment on the emulated cluster, recorded in results/runs for `harness collect`.

Of an experiment, the runs of as many ranks as the hosts have together. Runs with a record are not repeated.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import cluster

from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.graph.store.building import build_store
from harness.results.record import read_record
from harness.spec.root import find_results_folder, find_root


def run_all(file: Path, ranks_per_host: int, environment: dict[str, str]) -> int:
    """Returns 0 if every run of the experiment has succeeded in the end, else 1."""
    root = find_root()
    runs = find_results_folder(root) / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    failed = 0
    specs, ranks = expand(root, load_experiment(file)), cluster.hosts_up() * ranks_per_host
    chosen = [spec for spec in specs if spec.ranks == ranks]
    if not chosen:
        raise cluster.TestbedError(
            f"{file} has runs of {', '.join(map(str, sorted({spec.ranks for spec in specs})))} ranks, and "
            f"{cluster.hosts_up()} hosts are up with {ranks_per_host} ranks each: `up --hosts` others, or run it with "
            "--ranks-per-host."
        )
    for spec in chosen:
        build_store(root, spec.dataset)
        folder = runs / spec.run_id
        if not (folder.is_dir() and read_record(folder).record["status"] == "ok"):
            shutil.rmtree(folder, ignore_errors=True)
            scratch = Path(tempfile.mkdtemp(prefix="testbed-"))
            (scratch / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
            # The command is recorded, and others need not read where this folder is.
            place = os.path.relpath(runs)
            command = ["python", "-m", "harness.runtime.rank", "--scratch", str(scratch), "--runs", place]
            cluster.run(command, ranks_per_host, {**environment, **spec.machine.allocator})
            causes = [
                json.loads(fault.read_text())["message"] for fault in sorted(scratch.glob("fault-*.json"))
            ]
            for cause in causes[:1]:
                print(cause)
            shutil.rmtree(scratch)
        done = folder.is_dir()
        failed += not done
        print(f"{spec.label}: {'ok' if done else 'failed'}", flush=True)
    return 1 if failed else 0
