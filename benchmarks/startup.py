"""From the start of the launcher to the first epoch, beside a bare torchrun whose ranks import torch and leave.

    python benchmarks/startup.py [--ranks 4]

They take turns. `to the record` is a whole `harness run` of one epoch on the tiny graph, process start to exit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from harness.experiment.request import make_spec
from harness.launch.launch import launch
from harness.spec.root import project_root

BARE = (
    'import torch, torch.distributed as dist; dist.init_process_group("gloo"); dist.destroy_process_group()'
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bare, first, whole = [], [], []
    for _ in range(options.rounds):
        bare.append(torchrun(options.ranks))
        to_epoch, to_record = harness_run(options.ranks)
        first.append(to_epoch)
        whole.append(to_record)
    base = median(bare)
    for name, seconds in (("bare torchrun", bare), ("to the first epoch", first), ("to the record", whole)):
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
    root = project_root()
    training = {"epochs": 1, "warmup": 0}
    request = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": ranks, "training": training}
    spec = make_spec(root, request, "startup")
    with tempfile.TemporaryDirectory() as folder:
        begun, clock = time.time(), time.perf_counter()
        record = launch(spec, root, Path(folder) / "runs", lambda _: None) / "record.json"
        took = time.perf_counter() - clock
        told = json.loads(record.read_text())
        assert told["status"] == "ok", told["error"]
        return told["provenance"]["first_epoch"] - begun, took


if __name__ == "__main__":
    main()
