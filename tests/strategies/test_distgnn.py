"""DistGNN without a delay equals serial training; otherwise it equals dense training by its recurrence."""

from itertools import product
from typing import Any

import pytest

from harness.comm.grid import Grid
from harness.conformance.case import Case, train_rank
from harness.conformance.checks import ScipyCounts
from harness.conformance.reference import train_densely
from harness.graph.partitions.partition import partition_graph
from harness.ledger import Direction, Ledger, Op, TensorName
from harness.runtime.trainer import Trainer
from harness.strategies.distgnn import DistGnn
from harness.strategy import BlockCounts, Promise, csr_bytes
from tests.cases import DOUBLE, SGD, in_parts, make_case

PARTS = 3


def make_distgnn_case(
    ranks: int = PARTS,
    partition: str = "libra",
    *,
    directed: bool = True,
    model: dict[str, Any] | None = None,
    **params: Any,
) -> Case:
    return make_case(
        "distgnn",
        {"p": ranks},
        params,
        dataset=in_parts(ranks, partition),
        model={"layers": 3, "hidden": 10, **(model or {})},
        training={**SGD, "warmup": 0},
        directed=directed,
        **DOUBLE,
    )


def strategy_of(case: Case) -> DistGnn:
    strategy = case.strategy()
    assert isinstance(strategy, DistGnn)
    return strategy


@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("world", [2, 5])
def test_training_on_libras_vertex_cut_equals_serial_training(
    ranks, world: int, directed: bool, kind: str
) -> None:
    case = make_distgnn_case(world, directed=directed, model={"kind": kind, "norm": True, "dropout": 0.3})
    serial = train_densely(case.strategy(), case.store(), 4)
    for result in ranks(world, train_rank, case, 4):
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)
        assert result.uncounted == []  # nothing of the whole graph


LATE: list[dict[str, Any]] = [
    {"delay": 1},
    {"delay": 3},
    {"delay": 2, "gradients": "delayed"},
    {"aggregates": "none"},
]
GRAPHS = list(product(["libra", "block", "metis", "random"], [False, True], ["gcn", "sage"]))
SYMMETRIC = ("block", False, "gcn")
"""A symmetric matrix whose pieces are not symmetric. The quick tests try every choice of parameters on it."""
OTHERS = [
    ("libra", True, "gcn", 1),
    ("libra", False, "sage", 2),
    ("metis", False, "gcn", 3),
    ("random", True, "sage", 0),
]
"""The other graphs of the quick tests, each with one choice of parameters."""


@pytest.mark.parametrize(
    ("partition", "params", "matrices"),
    [("libra", {"delay": 1}, 1), ("block", {"delay": 1}, 2), ("block", {"delay": 0}, 1)],
    ids=str,
)
def test_undirected_graph_has_a_transpose_only_if_its_pieces_are_not_symmetric(
    partition: str, params: dict[str, Any], matrices: int
) -> None:
    case = make_distgnn_case(PARTS, partition, directed=False, **params)
    strategy, counts = strategy_of(case), ScipyCounts(case.store())
    for rank in range(PARTS):
        at = strategy.coordinates(rank)
        sizes = strategy.sizes_of(at, counts)
        rows = len(strategy.rows(at)) + sum(sizes.K)
        assert strategy.memory(at, counts)[TensorName.A] == matrices * csr_bytes(
            rows, sizes.entries, "float64"
        )


def test_words_equal_the_number_of_copies() -> None:
    """A row for every copy except the master, sent twice, or once in the last layer; the partitioner counts copies."""
    case, world = make_distgnn_case(4, directed=False, model={"order": "aggregate_first"}), 4
    strategy, counts = strategy_of(case), ScipyCounts(case.store())
    copies = sum(partition_graph(case.graph().A, "libra", world, 0).copies or ()) - case.vertices
    words = dict.fromkeys(range(3), 0.0)
    for rank in range(world):
        for key, sent in strategy.words(strategy.coordinates(rank), counts).items():
            if key.op is Op.ALL_TO_ALL and key.direction is Direction.FORWARD:
                words[key.layer] += sent
    assert words == {0: 2 * copies * 13, 1: 2 * copies * 10, 2: copies * 10}


def elements_by_epoch(case: Case, epochs: int) -> list[tuple[float, float]]:
    """Return the words of every epoch: sent, and by the formula."""
    strategy, counts = case.strategy(), BlockCounts(case.store())
    grid = Grid.build(strategy.grid, Ledger())
    trainer, words = Trainer(strategy, grid, case.store()), []
    for epoch in range(epochs):
        sent = sum(amounts.elements_payload for amounts in trainer.epoch().entries.values())
        words.append((sent, sum(strategy.words_of_epoch(grid.coordinates, counts, epoch).values())))
        trainer.evaluate()  # sums without a delay, whatever is in flight
    grid.drain()
    return words


@pytest.mark.parametrize("partition", ["libra", "block"])
def test_each_epoch_sends_the_words_of_its_bin(ranks, partition: str) -> None:
    """In r epochs as many words are sent as by cd-0 in one epoch, except for weight gradients and the loss."""
    late, once = (
        make_distgnn_case(4, partition, delay=3, gradients="delayed"),
        make_distgnn_case(4, partition, model={"order": "aggregate_first"}),
    )
    trained = sum(a * b for a, b in strategy_of(once).shapes) + 1
    by_rank = zip(ranks(4, elements_by_epoch, late, 6), ranks(4, elements_by_epoch, once, 1), strict=True)
    for words, [(at_once, formula)] in by_rank:
        assert [sent for sent, _ in words] == [formula for _, formula in words]
        assert at_once == formula and sum(sent - trained for sent, _ in words[:3]) == at_once - trained
        assert words[:3] == words[3:] and all(sent > trained for sent, _ in words)


def test_one_rank_is_exact() -> None:
    assert make_distgnn_case(1, delay=3).strategy().effective_promise is Promise.EXACT
    apart = make_distgnn_case(2, delay=1, aggregates="none")
    assert apart.strategy().effective_promise is Promise.APPROXIMATE
