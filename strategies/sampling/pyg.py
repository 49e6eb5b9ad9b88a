"""PyTorch Geometric's NeighborLoader in data parallel: PyG draws the mini-batches, and the harness trains on them.

Every rank has the whole graph, and the same targets as in `graphsage`. As in PyG's examples, all layers multiply by one
sampled graph, in which the outermost vertices have no neighbours. Self-loops are not drawn but always kept; the other
entries of a row are scaled by the number of its neighbours over the number of drawn ones. The rows of targets are
therefore unbiased if the library draws all neighbours with equal probability, but those of outermost vertices are not,
so the strategy is approximate. PyG samples with pyg-lib or torch-sparse; torch-sparse 0.6.18 prefers the first
neighbours of a vertex (docs/strategies/baselines.md).

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
from harness.ledger import AxisName, TensorName
from harness.strategies.sampling.composition import Composition, SampledStrategy
from harness.strategies.sampling.features import LocalFeatures
from harness.strategies.sampling.graph_placement import ReplicatedGraph
from harness.strategies.sampling.sampler import FanoutParams, GraphView, Neighbours, Sampler
from harness.strategy import LONG, WORD, Coordinates, Counts, MiniBatch, Promise, csr_bytes

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
                "PyG samples neighbours with pyg-lib or torch-sparse, and neither is installed: install one as PyG's "
                "documentation says, or use graphsage, which has its own sampler"
            )
        return super().refuse()

    def compose(self) -> Composition:
        return Composition(Loader(self.neighbours(self.params.fanouts)), ReplicatedGraph(), LocalFeatures())

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held; PyG's copy of the graph stays on the host."""
        held, precision, n = super().memory(at, counts), self.spec.precision, self.facts.vertices
        if self.spec.machine.device == "cpu":
            edges = self.facts.nonzeros - n  # without self-loops
            held[TensorName.A] += csr_bytes(n, edges, precision) + WORD[precision] * n
            held[TensorName.A] += LONG * (4 * edges + 2 * n + 1)
        return held


@dataclass(frozen=True)
class Loader(Sampler):
    """PyG's loader, on the targets of another sampler."""

    plain: Neighbours
    loader: Any = None
    """PyG's loader, the graph without self-loops, and the self-loops; set by `prepare_for`."""
    A: Csr | None = None
    loops: Tensor | None = None

    def steps(self, targets: int) -> int:
        return self.plain.steps(targets)

    def prepare_for(self, graph: GraphView) -> Self:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        A, loops = split_diagonal(to_device(graph.A, "cpu"), 0)
        edges = torch.stack([A.col.long(), row_indices(A)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using 'NeighborSampler' without a 'pyg-lib'")
            loader = NeighborLoader(Data(edge_index=edges, num_nodes=A.rows), self.plain.fanouts_per_hop())
        return replace(self, loader=loader, A=A, loops=loops)

    def host_tensors(self) -> list[Tensor]:
        """Return the graph without self-loops, the self-loops, PyG's edges, its columns of edges, and all vertices."""
        assert self.A is not None
        assert self.loops is not None
        columns = self.loader.node_sampler
        edges, vertices = self.loader.data.edge_index, self.loader.input_data.node
        return [*self.A[:3], self.loops, edges, columns.colptr, columns.row, columns.perm, vertices]

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """Draw a mini-batch with PyG. torch's generator is seeded for each, so repeated calls return the same."""
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
        rows, cols = torch.cat([row, loop]), torch.cat([col, loop])
        A_SS = from_coo(rows, cols, torch.cat([val, self.loops[S]]), (len(S), len(S)))
        A_BS = extract_block(A_SS, range(len(B)), range(len(S)))
        return MiniBatch([S] * layers + [B], [A_SS] * (layers - 1) + [A_BS])
