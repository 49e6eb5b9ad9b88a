"""Blocks of a graph nobody has: shapes alone, as many nonzeros as its facts let expect."""

import torch
from torch import Tensor

from harness.graph.order import Permutation
from harness.kernels import Csr
from harness.kernels.csr import index_dtype
from harness.store.blocks import assert_within
from harness.strategy.facts import Facts

META = torch.device("meta")


class ShapeBlocks:
    """Nonzeros are spread evenly, as a random permutation spreads them (`harness.store.blocks.Blocks`)."""

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
