"""Effective bandwidths and ring times are those of Plexus' section 4.2 and of its authors' code."""

from pathlib import Path

import pytest
import torch

from harness.cost import GB, bandwidth, communication
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.spec.machine_card import Links, load_machine_card
from harness.strategy import Words

ROOT = Path(__file__).parents[2]
X, Y = AxisName.X, AxisName.Y
PLAIN = Links(devices_per_node=4, intra_gbs=200, node_gbs=100)


@pytest.mark.parametrize(
    ("before", "size", "gbs"),
    [(1, 4, 200), (2, 2, 200), (1, 8, 100), (2, 4, 50), (4, 4, 25), (16, 2, 25)],
)
def test_ranks_of_a_node_share_what_leaves_it(before: int, size: int, gbs: float) -> None:
    assert bandwidth(PLAIN, before, size) == gbs


@pytest.mark.parametrize(
    ("machine", "table"),
    [
        (
            "perlmutter-measured",
            {(1, 2): 76, (1, 4): 225, (1, 64): 66.59, (2, 2): 76, (2, 8): 33.3, (4, 2): 16.6},
        ),
        (
            "frontier",
            {
                (1, 2): 129,
                (1, 4): 52,
                (1, 8): 135,
                (1, 64): 40,
                (2, 2): 50,
                (2, 4): 72,
                (2, 8): 20,
                (4, 2): 36,
            }
            | {(4, 8): 10, (8, 2): 5, (32, 64): 5},
        ),
    ],
)
def test_measured_bandwidths_are_the_authors(machine: str, table: dict[tuple[int, int], float]) -> None:
    links = load_machine_card(ROOT, machine).links
    assert links is not None
    assert {place: bandwidth(links, *place) for place in table} == table


def test_a_call_takes_as_long_as_a_ring_moves_its_words() -> None:
    grid = {X: 4, Y: 2}
    words = Words(grid)
    words.put(Direction.FORWARD, 0, Op.ALL_REDUCE, Y, TensorName.T, 4000)
    words.put(Direction.FORWARD, 0, Op.ALL_GATHER, X, TensorName.W, 4000)
    words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, (X, Y), TensorName.LOSS, 1)
    summed, gathered = 4 * 2 * 4000 / 2 / (200 * GB), 4 * 4000 * 3 / 4 / (50 * GB)
    loss = 4 * 2 * 7 / 8 / (100 * GB)
    assert communication(words, grid, PLAIN, "float32") == pytest.approx(summed + gathered + loss)
    assert communication(words, grid, PLAIN, "float64") == pytest.approx(2 * (summed + gathered + loss))
    narrow = communication(words, grid, PLAIN, "float32", torch.bfloat16)
    assert narrow == pytest.approx(summed / 2 + gathered + loss)
