"""PyTorch Geometric's own NeighborLoader, in data parallel: PyG draws the mini-batches, and the harness trains on them.

Every rank has the whole graph, and the targets of `graphsage`. As in PyG's examples, all layers multiply by one sampled
graph, whose outermost vertices have drawn no neighbours. Loops are not drawn and always kept; the other entries of a
row are multiplied by the number of its neighbours over the number of those drawn. So the rows of the targets have the
right mean, and the rows of outermost vertices do not: the strategy is approximate. PyG samples in pyg-lib or
torch-sparse.

Legend: S the sampled vertices, which begin with the targets B.
"""

import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from harness.kernels import Csr, from_coo, row_indices, to_device
from harness.kernels.parts import extract_block, split_diagonal
from harness.kernels.random import Purpose, derive_key
from harness.ledger import AxisName
from harness.strategies.sampling.composition import Composition, SampledStrategy
from harness.strategies.sampling.features import LocalFeatures
from harness.strategies.sampling.graph_placement import ReplicatedGraph
from harness.strategies.sampling.sampler import FanoutParams, GraphView, Neighbours, Sampler
from harness.strategy import MiniBatch, Promise

SAMPLING = ("pyg_lib", "torch_sparse")


class Pyg(SampledStrategy):
    """Neighbour sampling by PyG."""

    name = "pyg"
    paper = "PyTorch Geometric (ICLR workshop 2019)"
    promise = Promise.APPROXIMATE
    axes: ClassVar[tuple[AxisName, ...]] = (AxisName.D,)
    partitioned_over = None
    Params = FanoutParams
    params: FanoutParams

    def refuse(self) -> str | None:
        if not any(map(find_spec, SAMPLING)):
            return (
                "PyG samples neighbours in pyg-lib or torch-sparse, and neither is installed: install one as PyG's "
                "documentation says, or take graphsage, which samples by itself"
            )
        return super().refuse()

    def compose(self) -> Composition:
        return Composition(Loader(self.neighbours(self.params.fanouts)), ReplicatedGraph(), LocalFeatures())


@dataclass(frozen=True)
class Loader(Sampler):
    """PyG's loader, on the targets of another sampler. The memory that PyG takes for the graph is not counted."""

    plain: Neighbours
    loader: Any = None
    """PyG's loader, once the graph is known; and the graph without its loops, and the loops."""
    A: Csr | None = None
    loops: Tensor | None = None

    def steps(self, targets: int) -> int:
        return self.plain.steps(targets)

    def on(self, graph: GraphView) -> Self:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        A, loops = split_diagonal(to_device(graph.A, "cpu"), 0)
        edges = torch.stack([A.col.long(), row_indices(A)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using 'NeighborSampler' without a 'pyg-lib'")
            loader = NeighborLoader(Data(edge_index=edges, num_nodes=A.rows), self.plain.hops())
        return replace(self, loader=loader, A=A, loops=loops)

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """The same mini-batch in every call: PyG draws from torch's generator, which is seeded for each."""
        assert self.A is not None
        assert self.loops is not None
        layers, B = self.plain.layers, self.plain.targets(step, group, targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_key((self.plain.seed, group, step), Purpose.SAMPLE)[0] >> 1)
            drawn = self.loader(B)
        S, (col, row) = drawn.n_id, drawn.edge_index
        degree = self.A.rowptr.diff().to(self.A.val.dtype)
        val = self.A.val[drawn.e_id] * (degree[S[row]] / row.bincount(minlength=len(S))[row])
        loop = torch.arange(len(S))
        A_SS = from_coo(
            torch.cat([row, loop]),
            torch.cat([col, loop]),
            torch.cat([val, self.loops[S]]),
            (len(S), len(S)),
        )
        A_BS = extract_block(A_SS, range(len(B)), range(len(S)))
        return MiniBatch([S] * layers + [B], [A_SS] * (layers - 1) + [A_BS])
