"""The communication contract of a strategy: payload words of one rank and epoch, by row of the ledger."""

from collections.abc import Mapping
from typing import NamedTuple

from harness.ledger import AxisName, Direction, Op, TensorName


class WordsKey(NamedTuple):
    """The part of a ledger's key that a formula speaks of."""

    direction: Direction
    layer: int
    op: Op
    axis: str
    tensor: TensorName


class Words(dict[WordsKey, float]):
    """A table of words, written row by row as in the paper. An axis of one rank carries nothing."""

    def __init__(self, grid: Mapping[AxisName, int]) -> None:
        super().__init__()
        self._grid = grid

    def put(
        self, direction: Direction, layer: int, op: Op, axis: AxisName, tensor: TensorName, words: float
    ) -> None:
        """Adds words to a row; rows without any do not appear."""
        if self._grid[axis] > 1 and words:
            key = WordsKey(direction, layer, op, axis, tensor)
            self[key] = self.get(key, 0) + words
