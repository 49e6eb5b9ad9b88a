"""Draw a custom figure: the time of each op in an epoch, from runs that this script makes.

python examples/custom_figure.py ops.svg
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import harness

shares = {}
for strategy in ("cagnet-1d", "plexus"):
    record = harness.run(strategy, "tiny-sbm", ranks=2, settings={"training.epochs": 3}).record
    ledger = record.table("ledger")  # one row for each rank, epoch and place in the algorithm
    shares[strategy] = ledger.groupby("op").seconds.sum() / ledger.seconds.sum()

figure = Figure(figsize=(3.4, 2.4), layout="constrained")
axes = figure.subplots()
left = dict.fromkeys(shares, 0.0)
for op in sorted(set().union(*shares.values())):
    widths = [share.get(op, 0.0) for share in shares.values()]
    axes.barh(list(shares), widths, left=list(left.values()), label=op)
    left = {name: start + width for (name, start), width in zip(left.items(), widths, strict=True)}
axes.set_xlabel("share of the epoch")
axes.legend(fontsize=6)
path = Path(sys.argv[1] if len(sys.argv) > 1 else "ops.svg")
figure.savefig(path)
print(path)
