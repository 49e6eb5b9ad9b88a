"""Many tiny runs in one job, beside the same ranks started bare: the time that the harness adds to a run.

    python benchmarks/batch.py [--runs 200] [--ranks 2]
    python benchmarks/batch.py --on-slurm      in a job of the Slurm that the tests start (root, Debian's packages)

A bare run is the rank processes alone, started by the same line with the same environment, to their last exit. Its time
is the run's own. Bare runs are spread among the others. The goal is 1.3 times the sum of the runs' own times, and less
than a second a run.
"""

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import yaml
from measuring import Table, argument_parser, spec_of

from harness.launch.rank_starter import make_rank_starter
from harness.launch.series import launch_series
from harness.results.record import read_record
from harness.spec.root import find_root
from harness.spec.spec import Spec, canonical_json

BETWEEN = 10
"""Runs after which a bare run takes its turn."""
CARD = {"slurm": {"ranks_per_node": 4, "interfaces": ["lo"], "minutes": 5}}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--machine", default="local")
    parser.add_argument("--on-slurm", action="store_true")
    options = parser.parse_args()
    if options.on_slurm:
        print(in_a_job(options.runs, options.ranks))
        return
    specs = [launch_of(launch, options.ranks, options.machine) for launch in range(options.runs)]
    root = find_root()
    taken, bare = 0.0, []
    with tempfile.TemporaryDirectory(prefix="batch-", dir=root / "results") as folder:
        runs = Path(folder) / "results" / "runs"
        for start in range(0, len(specs), BETWEEN):
            bare.append(bare_run(specs[start], root, Path(folder) / f"bare-{start}"))
            begun = time.perf_counter()
            outcomes = list(launch_series(specs[start : start + BETWEEN], root, runs, lambda _: None))
            taken += time.perf_counter() - begun
            statuses = {
                read_record(one.folder).record["status"] if one.folder else one.why for one in outcomes
            }
            assert statuses == {"ok"}, statuses
    own, each = median(bare), taken / len(specs)
    table = Table("runs", "ranks", "own time, s", "in the batch, s", "added, s", "over own")
    table.row(len(specs), options.ranks, *(f"{x:.2f}" for x in (own, each, each - own, each / own)))


def launch_of(number: int, ranks: int, machine: str) -> Spec:
    asked = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": ranks, "machine": machine}
    return spec_of({**asked, "launch": number, "training": {"epochs": 5, "warmup": 1}})


def bare_run(spec: Spec, root: Path, scratch: Path) -> float:
    """Seconds of the rank processes of a run, from the first start to the last exit."""
    scratch.mkdir(parents=True)
    (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
    words = ["--scratch", scratch, "--runs", scratch / "runs", "--meeting", scratch / "meeting"]
    starter = make_rank_starter(spec.machine, spec.ranks, root, ["harness.run.rank", *map(str, words)])
    begun = time.perf_counter()
    ranks = [subprocess.Popen(starter.command, env=one) for one in starter.environments]
    codes = [rank.wait() for rank in ranks]
    assert not any(codes), codes
    return time.perf_counter() - begun


def in_a_job(runs: int, ranks: int) -> str:
    """The table of a benchmark inside one job of a private Slurm, whose one machine plays both nodes."""
    root = find_root()
    card = root / "config" / "machines" / "batch-benchmark.yaml"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, str(root / "tests" / "slurm" / "cluster.py"), folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
            assert cluster.stdin and cluster.stdout
            status, pid, *_ = cluster.stdout.readline().split()
            assert status == "up", status
            card.write_text(yaml.safe_dump(CARD))
            try:
                words = ["--runs", runs, "--ranks", ranks, "--machine", card.stem]
                line = shlex.join([sys.executable, __file__, *map(str, words)])
                options = ["--wait", "--nodes=1", "--ntasks=4", "--mem=6000", "--time=60"]
                job = ["sbatch", *options, f"--chdir={root}", f"--output={folder}/out", "--wrap", line]
                subprocess.run(["nsenter", f"--mount=/proc/{pid}/ns/mnt", *job], stdout=subprocess.DEVNULL)
                return Path(folder, "out").read_text().strip()
            finally:
                card.unlink()
                cluster.stdin.close()


if __name__ == "__main__":
    main()
