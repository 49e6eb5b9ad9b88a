"""Each part of a model equals PyTorch's or PyTorch Geometric's module, and dropout has the right distribution."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.ledger import Ledger
from harness.prediction.replay import replay
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec
from harness.strategy.models.operators import dropout_mask
from harness.strategy.parallel.row_strategy import EPSILON

WHOLE = {"layers": 3, "hidden": 10, "projection": True, "norm": True, "residual": True}


def trainer_of(model: dict[str, Any], directed: bool = True, **training: Any) -> tuple[Trainer, Case]:
    spec = {
        "strategy": "serial",
        "dataset": "check",
        "grid": {"p": 1},
        "machine": {"name": "test"},
        "precision": "float64",
        "model": model,
        "training": training,
    }
    case = Case("test", Spec.model_validate(spec), vertices=97, directed=directed)
    strategy = case.strategy()
    return Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store()), case


class Published(nn.Module):
    """The paper's model out of PyTorch Geometric's layers and PyTorch's modules (ScaleGNN, equations 4 to 11)."""

    def __init__(self, model: dict[str, Any], features: int, classes: int) -> None:
        super().__init__()
        h, self.model = model["hidden"], model
        self.project = nn.Linear(features, h, bias=False)
        self.convs = nn.ModuleList(GCNConv(h, h, normalize=False, bias=False) for _ in range(model["layers"]))
        self.norms = nn.ModuleList(nn.RMSNorm(h, eps=EPSILON) for _ in range(model["layers"]))
        self.head = nn.Linear(h, classes, bias=False)

    def forward(self, X: Tensor, A: Tensor) -> Tensor:
        H = self.project(X)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            Z = conv(H, A)
            Z = norm(Z) if self.model["norm"] else Z
            Z = Z if self.model.get("activation") == "none" else Z.relu()
            H = Z + H if self.model["residual"] else Z
        return self.head(H)

    def load(self, weights: list[Tensor]) -> list[tuple[Tensor, nn.Parameter]]:
        """Our weights, and whose they are here; ours stand the other way round."""
        theirs = [self.project.weight]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            theirs += [conv.lin.weight, norm.weight] if self.model["norm"] else [conv.lin.weight]
        theirs.append(self.head.weight)
        for mine, other in zip(weights, theirs, strict=True):
            other.data = mine.detach().mT.reshape(other.shape).clone()
        return list(zip(weights, theirs, strict=True))


@pytest.mark.parametrize(
    "without",
    [{}, {"norm": False}, {"residual": False}, {"activation": "none"}, {"norm": False, "residual": False}],
    ids=str,
)
def test_the_model_is_the_published_one(without: dict[str, Any]) -> None:
    model = WHOLE | without
    trainer, case = trainer_of(model)
    store = case.store()
    everyone = range(store.n)
    A = store.adjacency(everyone, everyone)
    theirs = Published(model, store.features, store.classes).double()
    pairs = theirs.load(trainer.weights)
    sparse = torch.sparse_csr_tensor(A.rowptr, A.col.long(), A.val, size=A.shape, check_invariants=True)
    Z_theirs = theirs(store.feature_block(everyone, range(store.features)).double(), sparse)
    Z_ours = trainer.forward(trainer.operators)
    torch.testing.assert_close(Z_ours, Z_theirs, rtol=1e-12, atol=1e-13)
    direction = torch.linspace(-1, 1, Z_ours.numel(), dtype=torch.float64).view(Z_ours.shape)
    (Z_ours * direction).sum().backward()
    (Z_theirs * direction).sum().backward()
    for mine, other in pairs:
        torch.testing.assert_close(
            mine.grad,
            other.grad.mT.reshape(mine.shape) if other.ndim > 1 else other.grad[None],
            rtol=1e-10,
            atol=1e-13,
        )


@pytest.mark.parametrize("directed", [False, True])
def test_graphsage_is_the_published_one(directed: bool) -> None:
    """PyTorch Geometric's layers, over the edges of the graph without its loops."""
    model = {"kind": "sage", "layers": 3, "hidden": 10}
    trainer, case = trainer_of(model, directed)
    store = case.store()
    everyone = range(store.n)
    A = store.adjacency(everyone, everyone)
    target = torch.repeat_interleave(torch.arange(store.n), A.rowptr.diff())
    edges = torch.stack([A.col.long(), target])[:, A.col != target]
    sizes = [store.features, 10, 10, store.classes]
    convs = [SAGEConv(*pair, bias=False).double() for pair in pairwise(sizes)]
    H = store.feature_block(everyone, range(store.features)).double()
    for layer, conv in enumerate(convs):
        (W, _), root = trainer.layers.layers[layer], trainer.layers.roots[layer]
        conv.lin_l.weight.data, conv.lin_r.weight.data = W.detach().T.clone(), root.detach().T.clone()
        H = conv(H, edges)
        H = H.relu() if layer < 2 else H
    ours = trainer.forward(trainer.operators)
    torch.testing.assert_close(ours, H, rtol=1e-12, atol=1e-13)
    direction = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view(ours.shape)
    (ours * direction).sum().backward()
    (H * direction).sum().backward()
    for layer, conv in enumerate(convs):
        (W, _), root = trainer.layers.layers[layer], trainer.layers.roots[layer]
        torch.testing.assert_close(W.grad, conv.lin_l.weight.grad.T, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(root.grad, conv.lin_r.weight.grad.T, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("directed", [False, True])
def test_attention_is_the_published_one(directed: bool) -> None:
    """PyTorch Geometric's layers, over the edges of the graph and its loops; of the heads, their mean comes last."""
    heads, hidden = 3, 5
    trainer, case = trainer_of({"kind": "gat", "layers": 3, "hidden": hidden, "heads": heads}, directed)
    store = case.store()
    A = store.adjacency(range(store.n), range(store.n))
    edges = torch.stack([A.col.long(), torch.repeat_interleave(torch.arange(store.n), A.rowptr.diff())])
    H = store.feature_block(range(store.n), range(store.features)).double()
    convs = []
    for layer, ((W, _), a) in enumerate(zip(trainer.layers.layers, trainer.layers.attentions, strict=True)):
        last = layer == 2
        width = store.classes if last else hidden
        conv = GATConv(
            W.shape[0], width, heads, concat=not last, bias=False, add_self_loops=False, negative_slope=0.2
        ).double()
        conv.lin.weight.data = W.detach().T.clone()
        conv.att_dst.data, conv.att_src.data = a.detach().view(2, 1, heads, width).clone()
        H = conv(H, edges) if last else conv(H, edges).relu()
        convs.append(conv)
    ours = trainer.forward(trainer.operators)
    torch.testing.assert_close(ours, H, rtol=1e-12, atol=1e-13)
    direction = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view(ours.shape)
    (ours * direction).sum().backward()
    (H * direction).sum().backward()
    for (W, _), a, conv in zip(trainer.layers.layers, trainer.layers.attentions, convs, strict=True):
        torch.testing.assert_close(W.grad, conv.lin.weight.grad.T, rtol=1e-10, atol=1e-13)
        theirs = torch.stack([conv.att_dst.grad, conv.att_src.grad]).view(a.shape)
        torch.testing.assert_close(a.grad, theirs, rtol=1e-10, atol=1e-13)


def test_dropout_keeps_the_mean_and_differs_by_step_and_layer() -> None:
    vertices, features, rate = torch.arange(400), range(50), 0.3
    drawn = {
        at: dropout_mask((7, *at), vertices, features, rate)
        for at in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    }
    for kept, scale in drawn.values():
        assert abs(kept.float().mean() - (1 - rate)) < 4 * (rate * (1 - rate) / kept.numel()) ** 0.5
        assert scale == pytest.approx(1 / (1 - rate), rel=1e-4)
    (one, _), *others = drawn.values()
    for other, _ in others:
        assert abs((one == other).float().mean() - (0.7**2 + 0.3**2)) < 0.02


def test_dropout_is_used_in_training_alone() -> None:
    trainer, _ = trainer_of(WHOLE | {"dropout": 0.5})
    assert torch.equal(trainer.output(), trainer.output())
    first, again, second = (trainer.forward(trainer.operators.for_step(step)) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, trainer.output())


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("bare", [False, True])
def test_recomputed_layers_have_the_same_bits_in_less_memory(kind: str, bare: bool) -> None:
    model = {"layers": 4, "hidden": 10, "kind": kind} if bare else {**WHOLE, "dropout": 0.5, "kind": kind}
    trained, peaks = [], []
    for recompute in (False, True):
        trainer, case = trainer_of(model, recompute=recompute)
        losses = [trainer.step() for _ in range(2)]
        trained.append([*losses, *trainer.weights])
        peaks.append(replay(trainer.strategy, blocks=case.store()).peak_bytes)
    assert all(torch.equal(kept, again) for kept, again in zip(*trained, strict=True))
    assert peaks[1] < peaks[0]


def test_a_run_that_keeps_its_activations_has_the_id_of_before() -> None:
    assert "recompute" not in trainer_of({})[1].spec.model_dump()["training"]
