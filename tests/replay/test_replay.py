"""A rank replayed on shapes does what the same rank does in a run, in any world, and as its formula says."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UserError
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.comm.launchers import RankPlace
from harness.conformance.account import count_epoch_words
from harness.conformance.case import make_check_graph
from harness.experiment.known_graph import facts_of_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.model import TRAIN, Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.memory_store import MemoryStore
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.ledger.tape import Tape, outline_events
from harness.prediction.replay import Meter, replay
from harness.registry import load_strategy
from harness.spec.spec import Spec, StrategyChoice
from harness.strategy import BlockCounts, Facts, ShapeBlocks, Strategy, facts_of

ROOT = Path(__file__).parents[2]
PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, False, 2_449_029, 196_615, exact=False)
FEW = Facts(24_490, 1_261_670, 100, 47, False, 24_490, 1_966, exact=False)
H, T = TensorName.H, TensorName.T


def strategy(
    ranks: int,
    facts: Facts = PRODUCTS,
    name: str = "cagnet-1d",
    grid: dict[str, int] | None = None,
    kind: str = "gcn",
    batch: int = 0,
) -> Strategy:
    spec = Spec.model_validate(
        {
            "strategy": {"name": name},
            "dataset": {"name": "any"},
            "ranks": ranks,
            "grid": grid or {"p": ranks},
            "model": {"hidden": 128, "layers": 3, "kind": kind},
            "training": {"batch": batch},
            "machine": {"name": "any"},
        }
    )
    return load_strategy(name)(spec, facts)


@pytest.mark.parametrize(
    ("name", "grid", "rank"),
    [
        ("cagnet-1d", {"p": 1}, 0),
        ("cagnet-1d", {"p": 7}, 6),
        ("cagnet-1d", {"p": 512}, 0),
        ("cagnet-1d", {"p": 512}, 511),
        pytest.param("cagnet-1d", {"p": 2048}, 0, marks=pytest.mark.slow),
        pytest.param("cagnet-1d", {"p": 4096}, 4095, marks=pytest.mark.slow),
        ("cagnet-1.5d", {"row": 128, "col": 16}, 2047),
        ("cagnet-2d", {"row": 64, "col": 32}, 33),
        ("cagnet-2d", {"row": 45, "col": 45}, 2024),
        ("cagnet-3d", {"row": 16, "col": 16, "fibre": 8}, 5),
        ("cagnet-sa-1d", {"p": 512}, 511),
        ("cagnet-sa-1.5d", {"row": 64, "col": 4}, 17),
    ],
)
def test_any_rank_of_any_world_sends_the_words_of_the_formula(
    name: str, grid: dict[str, int], rank: int
) -> None:
    sends_the_words_of_the_formula(strategy(prod(grid.values()), name=name, grid=grid), rank)


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_bins_of_unknown_vertices_send_the_words_of_the_formula(kind: str) -> None:
    """Of facts alone nobody knows which vertices a bin needs, but how many."""
    sends_the_words_of_the_formula(strategy(7, FEW, "g3", kind=kind), 6)


def sends_the_words_of_the_formula(ready: Strategy, rank: int) -> None:
    words = {key: sent.words for key, sent in count_epoch_words(replay(ready, rank).entries).items()}
    counts = BlockCounts(ShapeBlocks(ready.facts))
    assert words == {
        key: count for key, count in ready.words(ready.coordinates(rank), counts).items() if count
    }


@pytest.mark.parametrize("ranks", [1, 3, 16])
def test_the_ranks_of_a_world_share_the_flops_of_serial_training(ranks: int) -> None:
    """3 sparse products forward, of the narrower side, 3 backward over A^T, however the rows are cut."""
    flops = dict.fromkeys(Op, 0)
    for rank in range(ranks):
        for key, amounts in replay(strategy(ranks), rank).entries.items():
            flops[key.op] += amounts.flops
    n, widths = PRODUCTS.vertices, [100, 128, 128, 47]
    forward, backward = sum(map(min, pairwise(widths))), sum(widths[1:])
    assert flops[Op.SPMM] == pytest.approx(2 * PRODUCTS.nonzeros * (forward + backward), rel=1e-6)
    dense = 2 * n * (100 * 128 + 128 * 128 + 128 * 47)
    first_input_has_no_gradient = 2 * n * 100 * 128
    assert flops[Op.GEMM] == 3 * dense - first_input_has_no_gradient


@pytest.mark.parametrize(("name", "ranks"), [("serial", 1), ("g3", 4)])
def test_attention_is_counted_in_flops(name: str, ranks: int) -> None:
    """A product forward and two backward for every nonzero and feature of all heads, however the rows are cut."""
    ready = strategy(ranks, FEW, name, kind="gat")
    flops = sum(amounts.flops for key, amounts in replay(ready, 0).entries.items() if key.op is Op.SPMM)
    widths = 8 * 128, 8 * 128, 8 * 47
    assert flops == pytest.approx(3 * 2 * FEW.nonzeros / ranks * sum(widths), rel=1e-2)


def talk(grid: Grid) -> None:
    """Every call of an axis, at once and for later, even and uneven, through a narrower type."""
    axis, ledger, device = grid[AxisName.P], grid.ledger, grid.device
    p, i = axis.size, axis.index
    sizes = [2 * member + 1 for member in range(p)]
    x = torch.ones(sum(sizes), 3, device=device)
    mine = torch.ones(sizes[i], 3, device=device)
    with ledger.phase(Phase.CONVOLVE, 4):
        axis.all_reduce(x.clone(), tensor=T)
        replace(axis, wire=torch.bfloat16).reduce_scatter(x, tensor=T, sizes=sizes)
        axis.all_gather(mine, tensor=H, sizes=sizes)
        axis.all_gather(torch.ones(2, 2, device=device), tensor=H)
        axis.broadcast(x, root=1, shape=x.shape, tensor=H)
        first = axis.broadcast.later(x, root=0, shape=x.shape, tensor=H)
        second = axis.broadcast.later(x, root=0, shape=x.shape, tensor=H)
        shares = axis.all_to_all.later(
            torch.ones(2 * p, 3, device=device), send=[2] * p, receive=[2] * p, tensor=H
        )
        second.wait()
        first.wait()
        shares.wait()
        ring = {(i + 1) % p: mine}
        axis.exchange.later(ring, {(i - 1) % p: (sizes[i - 1], 3)}, dtype=x.dtype, tensor=H).wait()
        if i == 0:
            axis.send(mine, to=1, tensor=T)
        elif i == 1:
            axis.recv((sizes[0], 3), source=0, dtype=x.dtype, tensor=T)
        w = torch.ones(4, 4, device=device, requires_grad=True)
        total = axis.sum(axis.gather(axis.replicate(w, gradient=H), tensor=H, gradient=T), tensor=T)
        lost = axis.scatter(total, tensor=H, gradient=H).sum()
    with ledger.backward():
        lost.backward()


def taped() -> Any:
    tape = Tape()
    grid = Grid.build({AxisName.P: engine.world_size()}, tape, DEVICE)
    tape.start()
    with Meter(tape):
        talk(grid)
    tape.stop()
    return outline_events(tape.events)


DEVICE = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("cagnet-2d", {"row": 4, "col": 2}),
        ("scalegnn", {"d": 1, "x": 2, "y": 1, "z": 2}),
        ("g3", {"p": 2}),
        ("bulk-sage", {"row": 2, "col": 2}),
    ],
)
def test_an_operator_that_is_not_run_again_has_the_same_outcome(
    name: str, grid: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events, amounts and memory are those of a replay whose every operator runs."""
    mini_batches = load_strategy(name).mini_batches
    one = strategy(prod(grid.values()), FEW, name, grid, batch=64 if mini_batches else 0)
    remembered = [replay(one, steps=2) for _ in range(2)]
    monkeypatch.setattr("harness.prediction.replay._build_signature", lambda *_: None)
    again = replay(one, steps=2)
    for each in remembered:
        assert [pair for pair in zip(each.events, again.events, strict=True) if pair[0] != pair[1]] == []
        assert [key for key, amounts in again.entries.items() if each.entries.get(key) != amounts] == []
        assert each == again


FIRST_PEAK = """
import gc
from tests.replay.test_replay import FEW, replay, strategy

gc.disable()
small = strategy(4, FEW, "scalegnn", {"d": 1, "x": 2, "y": 1, "z": 2}, batch=64)
first, second = (replay(small, steps=2).peak_bytes for _ in range(2))
assert first == second, f"{first} and {second} bytes"
"""


@pytest.mark.long
def test_the_first_replay_of_a_process_has_the_peak_of_the_second(tmp_path: Path) -> None:
    """What is imported and compiled in it leaves no cycle that keeps tensors until a garbage collection."""
    nothing_compiled = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FIRST_PEAK], check=True, cwd=ROOT, env=nothing_compiled)
    assert any(tmp_path.rglob("*.nbi")), "nothing was compiled"


@pytest.mark.parametrize("world", [2, 3])
def test_every_call_of_an_axis_is_replayed_as_it_runs(
    world: int, ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = ranks(world, taped)
    for rank, lines in enumerate(ran):
        monkeypatch.setattr(f"{__name__}.DEVICE", engine.join_world(Engine.REPLAY, RankPlace(rank, world)))
        try:
            assert taped() == lines
        finally:
            engine.leave_world()
        waits = [line.waits_for for line in lines if line.waits_for >= 0]
        assert all(lines[number].leaves for number in waits)
        assert len(waits) == len(set(waits)) == sum(line.leaves for line in lines) == 4
        assert waits[0] == waits[1] + 1, "the second was waited for first"


def test_expected_blocks_hold_the_graph_once() -> None:
    facts = Facts(1009, 7013, 5, 3, True, 1009, 500, exact=False)
    cuts = [range(0, 337), range(337, 338), range(338, 338), range(338, 1009)]
    blocks = [[ShapeBlocks(facts).adjacency(rows, cols) for cols in cuts] for rows in cuts]
    assert sum(block.nnz for row in blocks for block in row) == 7013
    assert [[block.shape for block in row] for row in blocks] == [
        [(len(r), len(c)) for c in cuts] for r in cuts
    ]


def test_sizes_of_a_store_are_replayed_exactly() -> None:
    store = MemoryStore(make_check_graph(101))
    ready = strategy(3, facts_of(store))
    for rank, rows in enumerate((range(0, 34), range(34, 68), range(68, 101))):
        entries = replay(ready, rank, store).entries
        flops = sum(
            a.flops
            for key, a in entries.items()
            if key.op is Op.SPMM and key.layer == 0 and key.direction is Direction.FORWARD
        )
        assert flops == 2 * store.adjacency(rows, range(101)).nnz * store.features


def test_a_replay_makes_the_choices_of_a_run() -> None:
    """A run chooses by measured time, a replay the first; given those of a run it computes the run's products."""
    straight = strategy(8, FEW, "plexus", {"x": 2, "y": 2, "z": 2})
    choice = StrategyChoice(name="plexus", params={"weight_gradient": "measured"})
    measured = type(straight)(straight.spec.model_copy(update={"strategy": choice}), FEW)
    flipped = {f"weight_gradient of layer {layer}": "flipped" for layer in range(3)}
    as_run, unsaid, first = (
        [product for event in replay(each, chosen=chosen).events for product in event.products]
        for each, chosen in [(measured, flipped), (measured, None), (straight, None)]
    )
    assert unsaid == first != as_run


@pytest.mark.parametrize(
    ("name", "grid"),
    [("cagnet-1d", {"p": 4}), ("cagnet-2d", {"row": 2, "col": 2}), ("plexus", {"x": 2, "y": 2, "z": 1})],
)
def test_an_evaluation_sends_the_words_of_an_epochs_forward_pass(name: str, grid: dict[str, int]) -> None:
    """By the formula of an epoch, which holds no word of an evaluation; the loss is no part of the model's output."""
    trained = strategy(4, name=name, grid=grid)
    words = trained.words(trained.coordinates(0), BlockCounts(ShapeBlocks(trained.facts)))
    forward = {key: each for key, each in words.items() if key.direction is Direction.FORWARD}
    expected = {key: each for key, each in forward.items() if key.tensor is not TensorName.LOSS}
    evaluated = replay(trained, evaluation=True)
    assert {event.key.direction for event in evaluated.events} == {Direction.FORWARD}
    sent = {key: each.words for key, each in count_epoch_words(evaluated.entries).items()}
    assert sent == pytest.approx(expected)


def card(**changes: Any) -> DatasetCard:
    whole = {
        "name": "any",
        "source": {"kind": "edges", "path": "edges.txt"},
        "classes": 3,
        "features": {"kind": "uniform", "width": 8},
        "labels": {"kind": "degree"},
        "split": {"kind": "random", "train": 0.25},
        "expected": {"n": 100, "nnz_adj": 700},
    }
    return DatasetCard.model_validate(whole | changes)


def test_a_card_says_what_to_expect() -> None:
    assert facts_of_card(card()) == Facts(100, 700, 8, 3, False, 100, 25, exact=False)
    assert facts_of_card(card(split={"kind": "all"})).training == 100
    brought = card(
        split={"kind": "file"}, features={"kind": "file"}, expected={"n": 9, "nnz_adj": 70, "features": 5}
    )
    assert facts_of_card(brought) == Facts(9, 70, 5, 3, False, 9, 9, exact=False)
    known = card(split={"kind": "file"}, expected={"n": 9, "nnz_adj": 70, "labelled": 6, "training": 4})
    assert (facts_of_card(known).labelled, facts_of_card(known).training) == (6, 4)
    stored = card(expected={"n": 100, "stored": 300})
    assert facts_of_card(stored).nonzeros == facts_of_card(card()).nonzeros == 2 * 300 + 100
    drawn = card(expected={}, source={"kind": "sbm", "n": 50, "mean_degree": 6, "homophily": 0.5})
    assert (facts_of_card(drawn).vertices, facts_of_card(drawn).nonzeros) == (50, 6 * 50 + 50)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"expected": {"n": 100}}, "expected.nnz_adj"),
        ({"features": {"kind": "file"}}, "expected.features"),
    ],
)
def test_missing_card_keys_are_named(changes: dict[str, Any], missing: str) -> None:
    with pytest.raises(UserError, match=f"lacks {missing}, so"):
        facts_of_card(card(**changes))


def test_a_halo_exchange_on_a_path_has_its_neighbours_as_partners() -> None:
    """Each rank has a piece of the path; a run has no such number on its tape."""
    ends = torch.arange(64)
    A, counts = normalise_adjacency(RawGraph(64, ends[:-1].numpy(), ends[1:].numpy()), directed=False)
    y, split = ends % 3, torch.full((64,), TRAIN, dtype=torch.uint8)
    path = MemoryStore(Graph(A, torch.rand(64, 5), y, split, 3, directed=False, counts=counts))
    halo = strategy(4, facts_of(path), "bns-gcn")
    for rank, partners in enumerate((1, 2, 2, 1)):
        events = replay(halo, rank, path).events
        assert {event.partners for event in events if event.key.op is Op.ALL_TO_ALL} == {partners}
        assert {event.partners for event in events if event.key.op is not Op.ALL_TO_ALL} == {None}
