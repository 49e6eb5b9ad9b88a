"""The loop of `harness.graph.labels`: a label for every vertex, in one pass and no further memory."""

from typing import Any

from harness.kernels.jit import compiled


@compiled(nogil=True)
def label_in_turn(degrees: Any, ranks: Any, labels: Any, bounds: Any, y: Any) -> None:
    """`ranks` and `labels` have, by degree, those of the next vertex of it; a label ends at its bound."""
    for vertex in range(degrees.size):
        degree = degrees[vertex]
        while bounds[labels[degree]] <= ranks[degree]:
            labels[degree] += 1
        y[vertex] = labels[degree]
        ranks[degree] += 1
