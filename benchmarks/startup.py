"""From the start of the launcher to the first epoch, beside a bare torchrun whose ranks import torch and leave.

    python benchmarks/startup.py [--ranks 4]

The two take turns. `to the record` is a whole `harness run` of one epoch on the tiny graph, process start to exit.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from measuring import argument_parser, spec_of

from harness.launch.launch import launch
from harness.spec.root import find_root

BARE = (
    'import torch, torch.distributed as dist; dist.init_process_group("gloo"); dist.destroy_process_group()'
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = [(torchrun(options.ranks), *harness_run(options.ranks)) for _ in range(options.rounds)]
    names = ("bare torchrun", "to the first epoch", "to the record")
    base = median(bare for bare, *_ in rounds)
    for name, seconds in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:20}{median(seconds):8.2f} s (best {min(seconds):.2f}){median(seconds) / base:8.2f}")


def torchrun(ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        begun = time.perf_counter()
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        return time.perf_counter() - begun


def harness_run(ranks: int) -> tuple[float, float]:
    """Seconds to the first epoch, and to the record."""
    asked = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": ranks}
    spec = spec_of({**asked, "training": {"epochs": 1, "warmup": 0}})
    with tempfile.TemporaryDirectory() as folder:
        begun, clock = time.time(), time.perf_counter()
        path = launch(spec, find_root(), Path(folder) / "runs", lambda _: None) / "record.json"
        taken = time.perf_counter() - clock
        record = json.loads(path.read_text())
        assert record["status"] == "ok", record["error"]
        return record["provenance"]["first_epoch"] - begun, taken


if __name__ == "__main__":
    main()
