"""Print the strategies with the fastest predicted epochs for a graph on a machine, which need not be available.

python examples/advice.py rmat-17 64 perlmutter
"""

import sys

import harness

dataset, ranks, machine = (*sys.argv[1:], *("tiny-sbm", "4", "perlmutter")[len(sys.argv) - 1 :])
advice = harness.advise(dataset, int(ranks), machine, accuracy="exact")
for option in advice.full_graph[:5]:
    milliseconds = 1e3 * option.prediction.seconds.value
    print(
        f"{option.strategy.name:16} {option.grid:12} {milliseconds:9.3f} ms, limited by {option.prediction.limited_by}"
    )
for refusal in advice.refused[:3]:
    print(f"{refusal.strategy:16} cannot run: {refusal.reason}")
