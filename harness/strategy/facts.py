"""Facts about a graph and sizes of a model: what formulas, layouts and grids are computed from."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from harness.graph.blocks import Blocks, assert_within
from harness.graph.model import TRAIN, LabelTask, labelled
from harness.graph.order import Permutation
from harness.kernels import Csr
from harness.kernels.csr import index_dtype
from harness.models.weights import Part, Weight
from harness.ranges import between, split
from harness.spec.spec import ModelChoice, Protocol


@dataclass(frozen=True)
class Facts:
    """What is known of a graph before any of its blocks is read."""

    vertices: int
    nonzeros: int
    features: int
    classes: int
    directed: bool
    labelled: int
    """Vertices that have a label: the loss of the faithful protocol is a mean over them."""
    training: int
    """Those of the training split: the loss of the corrected protocol is a mean over them."""
    bounds: tuple[int, ...] | None = None
    """Where the parts of a partition begin, and the end; None without a partition."""
    task: LabelTask = "single-label"
    exact: bool = True
    """Counted in a store; or expected, from a card."""

    def trained_on(self, protocol: Protocol) -> int:
        """How many vertices the loss is a mean over, in the whole graph."""
        return self.training if protocol == "corrected" else self.labelled

    def blocks(self, parts: int) -> list[range]:
        """The vertices in so many blocks: the parts of the partition, or blocks of equal size."""
        if self.bounds is None:
            return split(self.vertices, parts)
        assert len(self.bounds) == parts + 1, (self.bounds, parts)
        return between(self.bounds)


def weights_of_model(model: ModelChoice, facts: Facts) -> list[Weight]:
    """Everything that a model trains on a graph, in the order in which it comes to it.

    With a projection every layer is as wide as it is long. Heads of attention stand side by side.
    """
    heads = model.heads if model.kind == "gat" else 1
    ends = (model.width, model.width) if model.projection else (facts.features, facts.classes * heads)
    widths = [ends[0], *[model.width] * (model.layers - 1), ends[1]]
    found = []
    if model.projection:
        found.append(Weight(Part.PROJECTION, -1, (facts.features, model.width)))
    for layer, (f_in, f_out) in enumerate(pairwise(widths)):
        if model.kind == "sage":
            found.append(Weight(Part.ROOT, layer, (f_in, f_out)))
        if model.kind == "gat":
            found.append(Weight(Part.ATTENTION, layer, (2, f_out)))
        found.append(Weight(Part.CONVOLUTION, layer, (f_in, f_out)))
        if model.norm and (model.projection or layer + 1 < model.layers):
            found.append(Weight(Part.SCALE, layer, (1, f_out)))
    if model.projection:
        found.append(Weight(Part.HEAD, -1, (model.width, facts.classes)))
    return found


# Blocks of a graph nobody has: shapes alone, as many nonzeros as its facts let expect.

META = torch.device("meta")


class ShapeBlocks:
    """Nonzeros are spread evenly, as a random permutation spreads them (`harness.graph.blocks.Blocks`)."""

    def __init__(self, facts: Facts, permutation: Permutation = "none") -> None:
        self.n, self.nnz = facts.vertices, facts.nonzeros
        self.features, self.classes, self.directed = facts.features, facts.classes, facts.directed
        self.permutation: Permutation = permutation
        self.task = facts.task
        self.bounds = facts.bounds
        self.manifest_hash = "shapes"

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """The nonzeros of stripes add up: both edges are rounded, not the difference."""
        assert_within(self.n, rows, cols)
        columns = round(self.nnz * cols.stop / self.n) - round(self.nnz * cols.start / self.n)
        nnz = round(columns * rows.stop / self.n) - round(columns * rows.start / self.n)
        return Csr(
            torch.empty(len(rows) + 1, dtype=torch.int64, device=META),
            torch.empty(nnz, dtype=index_dtype(len(cols)), device=META),
            torch.empty(nnz, device=META),
            len(cols),
        )

    def feature_block(self, rows: range, cols: range) -> Tensor:
        assert_within(self.n, rows)
        assert_within(self.features, cols)
        return torch.empty(len(rows), len(cols), device=META)

    def labels(self, rows: range, order: int = 0) -> Tensor:
        assert_within(self.n, rows)
        if self.task == "multi-label":
            return torch.empty(len(rows), self.classes, dtype=torch.int8, device=META)
        return torch.empty(len(rows), dtype=torch.int64, device=META)

    def split(self, rows: range, order: int = 0) -> Tensor:
        assert_within(self.n, rows)
        return torch.empty(len(rows), dtype=torch.uint8, device=META)


def facts_of(blocks: Blocks) -> Facts:
    """The facts of a store, counted."""
    everyone = range(blocks.n)
    known = labelled(blocks.labels(everyone))
    trains = known & (blocks.split(everyone) == TRAIN)
    return Facts(
        vertices=blocks.n,
        nonzeros=blocks.nnz,
        features=blocks.features,
        task=blocks.task,
        classes=blocks.classes,
        directed=blocks.directed,
        labelled=int(known.sum()),
        training=int(trains.sum()),
        bounds=blocks.bounds,
    )
