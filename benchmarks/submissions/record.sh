#!/bin/sh
# Records the submissions of this folder again, on a machine that does nothing else: `benchmarks/submissions/record.sh`.
# Competitors of a launch run one after the other in a block, and each experiment has its own folder in build/.
set -eu
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

record() { # NAME EXPERIMENT SCALE
    work=build/submissions/$1
    rm -rf "$work"
    mkdir -p "$work/specs"
    harness plan "$2" --scale "$3" --out "$work/plan.json" > "$work/plan.txt"
    python - "$work" << 'PYTHON'
"""Write each spec of a plan to a file. Files are named in the order of launches, each launch in another order."""
import json
import sys
from pathlib import Path

work = Path(sys.argv[1])
specs = [run["spec"] for run in json.loads((work / "plan.json").read_text())["runs"]]
launches = {launch: [spec for spec in specs if spec["launch"] == launch] for launch in {spec["launch"] for spec in specs}}
for launch, some in sorted(launches.items()):
    turn = launch % len(some)
    for place, spec in enumerate(some[turn:] + some[:turn]):
        (work / "specs" / f"{launch:02d}-{place:03d}.json").write_text(json.dumps(spec))
PYTHON
    harness run --spec "$work"/specs/*.json --out "$work/runs"
    harness predict --experiment "$2" --scale "$3" --out "$work/predicted"
    harness submission pack --by "Parallel GNN Harness" --runs "$work/runs" "$work/predicted" \
        --out "$work.tar.gz"
}

record smoke workflows/experiments/smoke.yaml laptop
for experiment in whole-graph mini-batches targets; do
    record $experiment benchmarks/submissions/$experiment.yaml laptop
done
cp build/submissions/*.tar.gz benchmarks/submissions/  # at the end: an untracked file makes the checkout differ from its commit
