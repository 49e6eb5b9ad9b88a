"""The communication contract of a strategy: payload words of one rank and epoch, by row of the ledger."""

from collections.abc import Mapping
from math import prod
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
        self,
        direction: Direction,
        layer: int,
        op: Op,
        axes: AxisName | tuple[AxisName, ...],
        tensor: TensorName,
        words: float,
    ) -> None:
        """Adds words to a row of an axis, or of several taken as one; rows without any do not appear."""
        joint = (axes,) if isinstance(axes, AxisName) else axes
        if prod(self._grid[axis] for axis in joint) > 1 and words:
            name = "+".join(axis for axis in self._grid if axis in joint)
            key = WordsKey(direction, layer, op, name, tensor)
            self[key] = self.get(key, 0) + words
