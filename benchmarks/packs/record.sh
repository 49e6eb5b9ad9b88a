#!/bin/sh
# Records the packs of this folder again, on a machine that does nothing else: `benchmarks/packs/record.sh`.
# Competitors of a launch run one after the other in a block, and each experiment has its own folder in build/. The runs
# on shaped links need root.
set -eu
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

pack() { # NAME EXPERIMENT SCALE
    harness predict --experiment "$2" --scale "$3" --out "build/packs/$1/predicted"
    harness pack --by "Parallel GNN Harness" --runs "build/packs/$1/runs" "build/packs/$1/predicted" \
        --out "build/packs/$1.tar.gz"
}

record() { # NAME EXPERIMENT SCALE [LAUNCHES [SEEDS]]
    work=build/packs/$1
    rm -rf "$work"
    mkdir -p "$work/specs"
    harness plan "$2" --scale "$3" --out "$work/plan.json" > "$work/plan.txt"
    python - "$work" "${4:-1}" "${5:-1}" << 'PYTHON'
"""Build the graphs of a plan, and write each of its specs to a file, with further launches and seeds.

Files are named in the order of launches, each launch in another order.
"""
import json
import subprocess
import sys
from pathlib import Path

work, launches, seeds = Path(sys.argv[1]), range(int(sys.argv[2])), range(int(sys.argv[3]))
planned = [run["spec"] for run in json.loads((work / "plan.json").read_text())["runs"]]
for graph in {json.dumps(spec["dataset"], sort_keys=True) for spec in planned}:
    choice = json.loads(graph)
    options = [word for key, value in choice.items() if key != "name" for word in (f"--{key}", str(value))]
    subprocess.run(["harness", "data", "build", choice["name"], *options], check=True)
specs = [spec | {"launch": spec["launch"] + launch, "seed": spec["seed"] + seed}
         for launch in launches for seed in seeds for spec in planned]
blocks = {}
for spec in specs:
    blocks.setdefault((spec["launch"], spec["seed"]), []).append(spec)
for turn, (_, block) in enumerate(sorted(blocks.items())):
    first = turn % len(block)
    for place, spec in enumerate(block[first:] + block[:first]):
        (work / "specs" / f"{turn:02d}-{place:03d}.json").write_text(json.dumps(spec))
PYTHON
    harness run --spec "$work"/specs/*.json --out "$work/runs"
    pack "$1" "$2" "$3"
}

record_on_links() { # NAME EXPERIMENT: its runs on four ranks, each with a link of 200 Mbit/s
    rm -rf "build/packs/$1"
    python benchmarks/testbed up --hosts 4 --rate 200mbit
    HARNESS_RESULTS="build/packs/$1" python benchmarks/testbed experiment "$2" || { python benchmarks/testbed down; exit 1; }
    python benchmarks/testbed down
    pack "$1" "$2" laptop
}

record smoke workflows/experiments/smoke.yaml laptop
for experiment in whole-graph mini-batches targets; do
    record $experiment benchmarks/packs/$experiment.yaml laptop
done
record bulk-sampling workflows/experiments/bulk-sampling-figure-4.yaml laptop 6
record g3 workflows/experiments/g3-figure-12.yaml laptop
record plexus workflows/experiments/plexus-figure-8.yaml laptop
record scalegnn workflows/experiments/scalegnn-figure-6.yaml laptop 1 5
record_on_links cagnet workflows/experiments/cagnet-figure-2.yaml
cp build/packs/*.tar.gz benchmarks/packs/  # at the end: an untracked file makes the checkout differ from its commit
