"""Serial training equals PyTorch Geometric's GCN in outputs, losses and gradients, in both orders of a convolution."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCNConv

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.kernels import to_scipy
from harness.ledger import Ledger
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec

SPEC: dict[str, Any] = {
    "strategy": "serial",
    "dataset": "check",
    "grid": {"p": 1},
    "machine": {"name": "test"},
    "precision": "float64",
}


def serial(order: str, *, directed: bool, layers: int = 3) -> tuple[Trainer, Case]:
    model = {"order": order, "layers": layers, "hidden": 10}
    case = Case("test", Spec.model_validate({**SPEC, "model": model}), vertices=97, directed=directed)
    strategy = case.strategy()
    return Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store()), case


def pyg_layers(weights: list[Tensor]) -> list[GCNConv]:
    layers = []
    for W in weights:
        layer = GCNConv(*W.shape, normalize=False, bias=False).double()
        layer.lin.weight.data = W.detach().T.clone()
        layers.append(layer)
    return layers


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("order", ["aggregate_first", "combine_first"])
def test_serial_training_equals_pyg(order: str, directed: bool) -> None:
    trainer, case = serial(order, directed=directed)
    store = case.store()
    everyone = range(store.n)
    A = store.adjacency(everyone, everyone)
    A_pyg = torch.sparse_csr_tensor(A.rowptr, A.col.long(), A.val, size=A.shape, check_invariants=True)
    layers = pyg_layers(trainer.weights)
    H = store.feature_block(everyone, range(store.features)).double()
    for number, layer in enumerate(layers):
        H = layer(H, A_pyg)
        H = H.relu() if number + 1 < len(layers) else H
    trains = (store.split(everyone) == 1) & (store.labels(everyone) >= 0)
    theirs = cross_entropy(H[trains], store.labels(everyone)[trains])
    theirs.backward()

    Z = trainer.forward(trainer.operators)
    ours = trainer.operators.loss(Z)
    ours.backward()
    torch.testing.assert_close(Z, H, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    for W, layer in zip(trainer.weights, layers, strict=True):
        torch.testing.assert_close(W.grad, layer.lin.weight.grad.T, rtol=1e-11, atol=1e-15)


def test_convolution_moves_features_along_directed_edges() -> None:
    """0 -> 1 -> 2: A[i, j] is the weight of the edge j -> i, so vertex 1 receives from 0 but not from 2."""
    A, _ = normalise_adjacency(RawGraph(3, np.array([0, 1]), np.array([1, 2])), directed=True)
    dense = torch.from_numpy(to_scipy(A).todense())
    assert (dense != 0).int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    torch.testing.assert_close(dense[1], torch.tensor([0.5**0.5, 0.5, 0.0], dtype=torch.float64))
