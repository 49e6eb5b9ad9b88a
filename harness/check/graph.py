"""The graph on which strategies are proven: it has everything that a kind graph would hide.

Directed, so that A and A^T differ; a prime number of vertices, so that no grid divides it; isolated vertices; a
training mask that is partial and leaves the first vertices out, so that some rank trains on nothing.
"""

import torch

from harness.graph.labels import uniform_label_sets, uniform_labels
from harness.graph.model import NO_LABEL, TEST, TRAIN, VALID, Graph, LabelTask, RawGraph
from harness.graph.normalise import normalise
from harness.kernels.random import Purpose, integers, rectangle

FEATURES, CLASSES = 13, 7
DEGREE = 4


def check_graph(
    vertices: int, *, directed: bool = True, task: LabelTask = "single-label", seed: int = 7
) -> Graph:
    """A graph of this many vertices; its features and classes are prime numbers too."""
    X = rectangle(seed, Purpose.FEATURES, range(vertices), range(FEATURES), FEATURES) - 0.5
    draw = integers(seed, Purpose.SPLIT, range(vertices), below=10)
    split = torch.where(draw < 5, TRAIN, torch.where(draw < 7, VALID, TEST))
    split[: vertices // 4] = TEST
    labels = uniform_labels(range(vertices), CLASSES, seed)
    if task == "multi-label":
        labels = uniform_label_sets(range(vertices), CLASSES, seed)
    labels[draw == 4] = NO_LABEL
    A, counts = normalise(_edges(vertices, seed), directed)
    return Graph(A, X.float(), labels, split.to(torch.uint8), CLASSES, directed, counts)


def _edges(vertices: int, seed: int) -> RawGraph:
    """Random edges, none of them at every eighth vertex."""
    ends = integers(seed, Purpose.EDGES, range(2 * DEGREE * vertices), below=vertices).view(2, -1)
    source, target = ends[:, (ends % 8 != 5).all(dim=0)].numpy()
    return RawGraph(vertices, source, target)
