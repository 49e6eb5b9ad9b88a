"""Many tiny runs in one job, beside the same ranks started bare: what the harness adds to a run.

    python benchmarks/batch.py [--runs 200] [--ranks 2]
    python benchmarks/batch.py --on-slurm      in a job of the Slurm that the tests start (root, Debian's packages)

A bare run is the rank processes alone, started by the same line with the same environment, to their last exit; its time
is the run's own. Bare ones are spread among the others. The goal is 1.3 times the sum of the runs' own times, and less
than a second a run.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import yaml

from harness.experiment.request import make_spec
from harness.launch.series import series
from harness.launch.ways import way
from harness.results.record import read_record
from harness.spec.root import project_root
from harness.spec.spec import Spec, canonical_json
from harness.store.build import build

BETWEEN = 10
"""Runs after which a bare one takes its turn."""
CARD = {"slurm": {"ranks_per_node": 4, "interfaces": ["lo"], "minutes": 5}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--machine", default="local")
    parser.add_argument("--on-slurm", action="store_true")
    options = parser.parse_args()
    if options.on_slurm:
        print(in_a_job(options.runs, options.ranks))
        return
    specs = [spec_of(options.ranks, launch, options.machine) for launch in range(options.runs)]
    root = project_root()
    build(root, specs[0].dataset)
    taken, bare = 0.0, []
    with tempfile.TemporaryDirectory(prefix="batch-", dir=root / "results") as folder:
        runs = Path(folder) / "results" / "runs"
        for start in range(0, len(specs), BETWEEN):
            bare.append(bare_run(specs[start], root, Path(folder) / f"bare-{start}"))
            begun = time.perf_counter()
            outcomes = list(series(specs[start : start + BETWEEN], root, runs, lambda _: None))
            taken += time.perf_counter() - begun
            statuses = {
                read_record(one.folder).record["status"] if one.folder else one.why for one in outcomes
            }
            assert statuses == {"ok"}, statuses
    own = median(bare)
    print("| runs | ranks | own time, s | in the batch, s | added, s | over own |\n|" + " --- |" * 6)
    each = taken / len(specs)
    print(
        f"| {len(specs)} | {options.ranks} | {own:.2f} | {each:.2f} | {each - own:.2f} | {each / own:.2f} |"
    )


def spec_of(ranks: int, launch: int, machine: str) -> Spec:
    request = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": ranks, "machine": machine}
    training = {"epochs": 5, "warmup": 1}
    return make_spec(project_root(), {**request, "launch": launch, "training": training}, "batch")


def bare_run(spec: Spec, root: Path, scratch: Path) -> float:
    """Seconds of the rank processes of a run, from the first start to the last exit."""
    scratch.mkdir(parents=True)
    (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
    words = ["--scratch", scratch, "--runs", scratch / "runs", "--meeting", scratch / "meeting"]
    chosen = way(spec.machine, spec.ranks, root, ["harness.run.rank", *map(str, words)])
    begun = time.perf_counter()
    ranks = [subprocess.Popen(chosen.command, env=one) for one in chosen.environments]
    codes = [rank.wait() for rank in ranks]
    assert not any(codes), codes
    return time.perf_counter() - begun


def in_a_job(runs: int, ranks: int) -> str:
    """The same inside one job of a Slurm of our own, whose one machine plays both nodes."""
    root = project_root()
    card = root / "config" / "machines" / "batch-benchmark.yaml"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, str(root / "tests" / "slurm" / "cluster.py"), folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
            assert cluster.stdin and cluster.stdout
            told = cluster.stdout.readline().split()
            assert told[0] == "up", told
            card.write_text(yaml.safe_dump(CARD))
            try:
                words = ["--runs", runs, "--ranks", ranks, "--machine", card.stem]
                line = shlex.join([sys.executable, __file__, *map(str, words)])
                job = [
                    "sbatch",
                    "--wait",
                    "--nodes=1",
                    "--ntasks=4",
                    "--mem=6000",
                    "--time=60",
                    f"--chdir={root}",
                ]
                inside = ["nsenter", f"--mount=/proc/{told[1]}/ns/mnt", *job]
                subprocess.run([*inside, f"--output={folder}/out", "--wrap", line], stdout=subprocess.DEVNULL)
                return Path(folder, "out").read_text().strip()
            finally:
                card.unlink()
                cluster.stdin.close()


if __name__ == "__main__":
    main()
