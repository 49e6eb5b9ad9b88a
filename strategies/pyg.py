"""PyTorch Geometric's own NeighborLoader, in data parallel: it draws the mini-batches, and the harness trains on them.

Every rank has the whole graph, and the targets of `graphsage`. As in PyG's examples all layers multiply by the sampled
graph, whose outermost vertices have drawn no neighbours. Loops are not drawn and always there; the other entries of a
row are rescaled by its neighbours over those that were drawn. So the rows of the targets have the right mean, and those
of outermost vertices have not: it is approximate. It needs pyg-lib or torch-sparse, the libraries in which PyG samples.

Legend: S the sampled vertices, which begin with the targets B.
"""

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

from harness.kernels import Csr, block, from_coo, row_of
from harness.kernels.diagonal import apart
from harness.kernels.random import Purpose, key_of
from harness.parallel.neighbourhood import FanoutParams, Fanouts, Neighbourhood, fanout_of
from harness.strategy import MiniBatch, Promise
from strategies.sampled import NeighbourSampling

SAMPLING = ("pyg_lib", "torch_sparse")


class Pyg(NeighbourSampling):
    """Neighbour sampling by PyG."""

    name = "pyg"
    promise = Promise.APPROXIMATE
    Params = FanoutParams
    params: FanoutParams

    def refuse(self) -> str | None:
        if not any(map(find_spec, SAMPLING)):
            return (
                "PyG samples neighbours in pyg-lib or torch-sparse, and neither is installed: install one as PyG's "
                "documentation says, or take graphsage, which samples by itself"
            )
        return super().refuse()

    @property
    def fanouts(self) -> Fanouts:
        return self.params.fanouts

    def sampler(self, A: Csr) -> "Loader":
        return Loader(A, self.neighbourhood, self.spec.model.layers)


class Loader:
    """PyG's, on one graph."""

    def __init__(self, A: Csr, neighbourhood: Neighbourhood, layers: int) -> None:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        self.neighbourhood = neighbourhood
        self.A, self.loops = apart(A, 0)
        self.degree = self.A.rowptr.diff()
        edges = torch.stack([self.A.col.long(), row_of(self.A)])
        fanouts = [fanout_of(neighbourhood.fanouts, hop) for hop in range(layers)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using 'NeighborSampler' without a 'pyg-lib'")
            self.loader = NeighborLoader(Data(edge_index=edges, num_nodes=A.rows), fanouts)

    def held(self) -> list[Tensor]:
        """What PyG keeps of the graph is its own business."""
        return []

    def mini_batch(self, step: int, group: int, A: Csr, layers: int, targets: Tensor) -> MiniBatch:
        """The same whenever it is asked for: PyG draws from torch's generator."""
        B = self.neighbourhood.targets(step, group, targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key_of((self.neighbourhood.seed, group, step), Purpose.SAMPLE)[0] >> 1)
            drawn = self.loader(B)
        S, (col, row) = drawn.n_id, drawn.edge_index
        scale = self.degree[S[row]].to(self.A.val.dtype) / row.bincount(minlength=len(S))[row]
        val = self.A.val[drawn.e_id] * scale
        loop = torch.arange(len(S))
        A_SS = from_coo(
            torch.cat([row, loop]),
            torch.cat([col, loop]),
            torch.cat([val, self.loops[S]]),
            (len(S), len(S)),
        )
        A_BS = block(A_SS, range(len(B)), range(len(S)))
        return MiniBatch([S] * layers + [B], [A_SS] * (layers - 1) + [A_BS])
