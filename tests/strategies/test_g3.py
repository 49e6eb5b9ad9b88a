"""G3 trains the same with every pipeline and bin size, sends each peer the rows that it needs, and never deadlocks."""

import random
import time
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from harness.comm import collectives
from harness.comm.grid import Grid
from harness.conformance.case import Case, train_rank
from harness.conformance.reference import train_densely
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.csr import Csr, to_scipy
from harness.ledger import AxisName, Ledger, Op
from harness.prediction.replay import replay
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec
from harness.strategies.g3.schedule import build_schedule
from harness.strategy import WORD, Context, facts_of
from tests.cases import DOUBLE, SGD, in_parts, make_case

PIPELINES = ("full", "inter", "intra", "sequential")
SLOW = pytest.mark.slow
EPOCHS, HEADS = 3, 2


def make_g3_case(
    parts: int = 3,
    layers: int = 3,
    vertices: int = 211,
    directed: bool = True,
    kind: str = "gcn",
    **params: Any,
) -> Case:
    heads = {"heads": HEADS} if kind == "gat" else {}
    return make_case(
        "g3",
        {"p": parts},
        params,
        dataset=in_parts(parts),
        model={"layers": layers, "hidden": 10, "kind": kind, **heads},
        training={**SGD, "epochs": EPOCHS},
        vertices=vertices,
        directed=directed,
        **DOUBLE,
    )


QUICK = [
    *((pipeline, 7, "gcn", pipeline in ("full", "intra")) for pipeline in PIPELINES),
    *(("full", *bins, False) for bins in ((1, "gcn"), (7, "sage"), (7, "gat"))),
    *(("sequential", *bins, True) for bins in ((1, "gcn"), (7, "sage"), (7, "gat"))),
]
"""Every pipeline, bin size, kind of model and message mode; their cross product is a slow test."""
EVERY = [
    (pipeline, *bins, rounds)
    for pipeline, bins, rounds in product(
        PIPELINES, [(1, "gcn"), (7, "gcn"), (7, "sage"), (7, "gat")], [False, True]
    )
]


@pytest.mark.parametrize(
    ("pipeline", "bin_nodes", "kind", "rounds"),
    [pytest.param(*each, marks=[] if each in QUICK else SLOW) for each in EVERY],
)
def test_every_pipeline_and_bin_size_equals_serial_training(
    ranks, pipeline: str, bin_nodes: int, kind: str, rounds: bool
) -> None:
    case = make_g3_case(pipeline=pipeline, bin_nodes=bin_nodes, kind=kind, rounds=rounds)
    serial = train_densely(case.strategy(), MemoryStore(case.graph()), EPOCHS)
    for result in ranks(3, train_rank, case, EPOCHS):
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)
        for mine, theirs in zip(result.parameters, serial.parameters, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("directed", "rounds"),
    [(False, True), (True, False), *(pytest.param(both, both, marks=SLOW) for both in (False, True))],
)
@pytest.mark.parametrize(("vertices", "kind"), [(5, "gcn"), (5, "gat"), (6, "gat"), (9, "gcn")])
def test_parts_without_vertices_or_neighbours_equal_serial_training(
    ranks, vertices: int, kind: str, directed: bool, rounds: bool
) -> None:
    """On a graph this small, METIS leaves parts empty and vertices isolated."""
    case = make_g3_case(parts=5, vertices=vertices, directed=directed, kind=kind, bin_nodes=1, rounds=rounds)
    serial = train_densely(case.strategy(), MemoryStore(case.graph()), EPOCHS)
    for result in ranks(5, train_rank, case, EPOCHS):
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)


def by_peer(case: Case) -> dict[tuple[str, int, str, int], float]:
    """Return the words of every message of an epoch, by direction, layer, op and peer."""
    strategy = case.strategy()
    grid = Grid.build(strategy.grid, Ledger())
    entries = Trainer(strategy, grid, case.store()).epoch().entries
    words: Counter[tuple[str, int, str, int]] = Counter()
    for key, amounts in entries.items():
        if key.op in (Op.SEND, Op.RECV):
            words[key.direction, key.layer, key.op, key.peer] += int(amounts.elements_payload)
    return words


@pytest.mark.parametrize("rounds", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize(
    ("pipeline", "kind", "hidden"), [*((each, "gcn", 10) for each in PIPELINES), ("full", "gat", 10 * HEADS)]
)
def test_each_peer_receives_the_rows_that_it_needs_in_every_pipeline(
    ranks, pipeline: str, kind: str, hidden: int, rounds: bool
) -> None:
    """Words equal scipy's counts; as many gradients return. With attention, rows have the width of all heads."""
    parts = 3
    case = make_g3_case(parts, kind=kind, pipeline=pipeline, bin_nodes=7, rounds=rounds)
    store = case.store()
    A, blocks = (
        to_scipy(store.adjacency(range(store.n), range(store.n))).tocsr(),
        facts_of(store).blocks(parts),
    )
    needed = {
        (i, j): len(np.unique(A[list(blocks[i])][:, list(blocks[j])].nonzero()[1]))
        for i in range(parts)
        for j in range(parts)
        if i != j
    }
    for rank, words in enumerate(ranks(parts, by_peer, case)):
        expected = {}
        for layer in (1, 2):
            for peer in set(range(parts)) - {rank}:
                arriving, leaving = hidden * needed[rank, peer], hidden * needed[peer, rank]
                for op, forward, backward in (("recv", arriving, leaving), ("send", leaving, arriving)):
                    expected["forward", layer, op, peer] = forward
                    expected["backward", layer, op, peer] = backward
        assert words == expected


def rows_read(case: Case) -> tuple[range, set[int]]:
    """Return the rows of A of this rank, and all rows of A that the rank reads before training."""
    store, strategy, read = case.store(), case.strategy(), set()
    adjacency = store.adjacency

    def watched(rows: range, cols: range, order: int = 0) -> Csr:
        read.update(rows)
        return adjacency(rows, cols, order)

    store.adjacency = watched
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), store)
    return strategy.rows(trainer.ctx.at), read


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_rank_reads_only_the_rows_of_its_own_part(ranks, kind: str) -> None:
    for rows, read in ranks(3, rows_read, make_g3_case(bin_nodes=7, kind=kind)):
        assert read == set(rows)


def bins_of(case: Case, priority: bool) -> list[tuple[list[int], bool]]:
    """Return the vertices of every bin of this rank, and whether the bin waits for another rank."""
    store = case.store()
    grid = Grid.build({AxisName.P: case.spec.ranks}, Ledger(recording=False))
    ctx = Context(case.spec, facts_of(store), grid, store)
    blocks, own = ctx.facts.blocks(case.spec.ranks), ctx.at[AxisName.P]
    plan, _ = build_schedule(ctx, blocks, own, 7, priority=priority, at_once=True)
    assert plan.order.in_layer(0) == range(len(plan.bins))
    assert plan.order.in_layer(1) == sorted(
        range(len(plan.bins)), key=lambda number: (bool(plan.bins[number].needs), number)
    )
    return [(each.rows.tolist(), bool(each.needs)) for each in plan.bins]


@pytest.mark.parametrize("priority", [False, True])
def test_bins_follow_the_list_and_only_bins_with_remote_neighbours_wait(ranks, priority: bool) -> None:
    case = make_g3_case(2)
    store = case.store()
    rows = facts_of(store).blocks(2)[0]
    outside = [v for v in range(store.n) if v not in rows]
    A = to_scipy(store.adjacency(range(store.n), range(store.n))).tocsr()
    remote = {v - rows.start for v in rows if A[[v]][:, outside].nnz}
    bins = ranks(2, bins_of, case, priority)[0]
    listed = [v for each, _ in bins for v in each]
    assert sorted(listed) == list(range(len(rows)))
    assert all(len(each) == 7 for each, _ in bins[:-1])
    assert [waits for _, waits in bins] == [not remote.isdisjoint(each) for each, _ in bins]
    if priority:
        assert set(listed[: len(remote)]) == remote
    else:
        assert listed == sorted(listed)


def train(case: Case, epochs: int, late: float) -> tuple[list[float], list[torch.Tensor]]:
    """Return losses, and parameters after the last epoch; a fraction `late` of all messages is delayed."""
    start, draw = collectives.exchange, random.Random()

    def exchange(*given: Any, **more: Any) -> Any:
        if draw.random() < late:
            time.sleep(draw.random() * 0.003)
        return start(*given, **more)

    collectives.exchange = exchange  # type: ignore[assignment]
    try:
        strategy = case.strategy()
        trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger(recording=False)), case.store())
        return [trainer.epoch().loss.item() for _ in range(epochs)], trainer.parameters
    finally:
        collectives.exchange = start


def same(runs: list[list[tuple[list[float], list[torch.Tensor]]]]) -> bool:
    """True if two runs have the same bits on all ranks."""
    return all(
        losses == other_losses and all(map(torch.equal, parameters, others))
        for (losses, parameters), (other_losses, others) in zip(*runs, strict=True)
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("epochs", "kind", "rounds"),
    [
        (10, "gcn", True),
        (10, "gat", False),
        *(
            pytest.param(1000, *each, marks=[SLOW, pytest.mark.timeout(1200)])
            for each in product(["gcn", "gat"], [False, True])
        ),
    ],
)
def test_delayed_messages_cause_no_deadlock_and_change_no_result(
    pool, epochs: int, kind: str, rounds: bool
) -> None:
    case = make_g3_case(4, vertices=97, kind=kind, bin_nodes=5, rounds=rounds)
    assert same([pool.run(4, train, case, epochs, late, patience=600) for late in (0.0, 0.3)])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_rounds_give_bitwise_the_same_results(ranks, pipeline: str) -> None:
    each = [make_g3_case(4, pipeline=pipeline, bin_nodes=5, rounds=rounds) for rounds in (False, True)]
    assert same([ranks(4, train, case, EPOCHS, 0.0) for case in each])


def exchanges(case: Case) -> list[list[tuple[str, int, int]]]:
    """Return this rank's library calls in an epoch, exchange by exchange: direction, peer and words."""
    start, calls = collectives.exchange, []

    def exchange(group: Any, sends: Any, landings: Any, *more: Any) -> Any:
        receives = [("recv", peer, landing.buffer.numel()) for peer, landing in landings.items()]
        calls.append(receives + [("send", peer, rows.numel()) for peer, rows in sends.items()])
        return start(group, sends, landings, *more)

    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger(recording=False)), case.store())
    collectives.exchange = exchange  # type: ignore[assignment]
    try:
        trainer.epoch()
    finally:
        collectives.exchange = start
    return calls


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("parts", [pytest.param(2, marks=SLOW), 4])
def test_rounds_start_the_messages_of_two_ranks_in_the_same_order(ranks, pipeline: str, parts: int) -> None:
    """NCCL requires that two ranks start their messages to each other in the same order."""
    by_rank = ranks(parts, exchanges, make_g3_case(parts, pipeline=pipeline, bin_nodes=7, rounds=True))
    other = {"send": "recv", "recv": "send"}
    for a in range(parts):
        for b in range(a):
            of_a, of_b = (
                [{call for call in calls if call[1] == peer} for calls in by_rank[rank]]
                for rank, peer in ((a, b), (b, a))
            )
            turned = [{(other[way], b, words) for way, _, words in calls} for calls in of_b]
            assert [calls for calls in of_a if calls] == [calls for calls in turned if calls]


def held(case: Case) -> tuple[dict[str, int], dict[str, int], list[torch.Tensor]]:
    """Return the device bytes by tensor, held and by the formula, and the parameters after some epochs."""
    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
    for _ in range(EPOCHS):
        trainer.epoch()
    ctx = trainer.ctx
    return ctx.memory.persistent_bytes(), strategy.memory(ctx.at, ctx.blocks.counts), trainer.parameters


def with_bins_on_host(case: Case, pipeline: str = "full") -> Case:
    """Return the case on a machine whose devices have separate memory; a CPU copies within its memory."""
    params = {"bin_nodes": 7, "bins_on": "host", "pipeline": pipeline}
    changed = {"machine": {"name": "test", "device": "cuda"}, "strategy": {"name": "g3", "params": params}}
    return replace(case, spec=Spec.model_validate(case.spec.model_dump() | changed))


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_bins_on_the_host_reduce_device_memory(kind: str, pipeline: str) -> None:
    """In replays of an epoch with many layers, less than with only the matrices on the host.

    Heads are narrow, so that edge weights are the largest part of a layer.
    """
    case = make_g3_case(kind=kind, layers=5, bin_nodes=7, pipeline=pipeline)
    if kind == "gat":
        model = case.spec.model.model_copy(update={"hidden": 1, "heads": 10})
        case = replace(case, spec=case.spec.model_copy(update={"model": model}))
    whole, less = (
        replay(each.strategy(), 1, each.store()) for each in (case, with_bins_on_host(case, pipeline))
    )
    matrices = whole.persistent_bytes["A"] - less.persistent_bytes["A"]
    rows, store = case.strategy().rows({AxisName.P: 1}), case.store()
    entries = store.adjacency(rows, range(store.n)).nnz
    kept = entries * case.spec.model.heads if kind == "gat" else len(rows) * case.spec.model.hidden
    assert whole.peak_bytes - less.peak_bytes > matrices + 2 * WORD["float64"] * kept


def test_record_says_where_bins_are_held() -> None:
    here = make_g3_case(1, bin_nodes=7, bins_on="host")
    for case, line in ((here, "a CPU has no memory"), (with_bins_on_host(here), "on the host")):
        strategy = case.strategy()
        trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
        assert line in trainer.ctx.measured.chosen["bins"]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_matrices_on_the_host_use_no_device_memory(ranks, kind: str) -> None:
    """The machine card says that device and host differ; the test runs on a CPU, so matrices are not copied."""
    case = make_g3_case(kind=kind, bin_nodes=7)
    apart = with_bins_on_host(case).spec
    on_device, on_host = (ranks(3, held, each) for each in (case, replace(case, spec=apart)))
    for (whole, _, parameters), (less, formula, others) in zip(on_device, on_host, strict=True):
        assert less == formula
        assert less["A"] < whole["A"]
        assert all(map(torch.equal, parameters, others))
