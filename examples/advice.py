"""Print the strategies with the fastest predicted epochs for a graph on a machine, which need not be available.

python examples/advice.py rmat-17 64 perlmutter
"""

import sys

import harness

dataset, ranks, machine = (*sys.argv[1:], *("tiny-sbm", "4", "perlmutter")[len(sys.argv) - 1 :])
answer = harness.advise(dataset, int(ranks), machine, accuracy="exact")
print(answer)  # as `harness advise` prints it

options = answer.to_frame().query("status == 'ok' and not mini_batches")
print(options[["strategy", "grid", "epoch_seconds", "elements_received"]].head(5).to_string(index=False))
for refusal in answer.advice.refused[:3]:
    print(f"{refusal.strategy:16} cannot run: {refusal.reason}")
