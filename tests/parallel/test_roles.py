"""Roles rotate so that a layer's output has the layout of the next layer's input, and pieces cover the matrices."""

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from harness.ledger import AxisName
from harness.strategy.parallel.roles import LayerShare, Roles, get_layer_share, get_roles, split_piece

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
FIRST = Roles(R=Z, S=X, T=Y)
sizes = st.integers(1, 4)
grids = st.fixed_dictionaries({X: sizes, Y: sizes, Z: sizes})


def shares(grid: dict[AxisName, int], layer: int, vertices: int, shape: tuple[int, int]) -> list[LayerShare]:
    steps = product(*(range(size) for size in grid.values()))
    places = [dict(zip(grid, step, strict=True)) for step in steps]
    return [get_layer_share(get_roles(layer, FIRST), grid, at, vertices, shape) for at in places]


def test_roles_have_period_three_and_every_axis_has_every_role() -> None:
    table = [get_roles(layer, FIRST) for layer in range(4)]
    assert [tuple(roles) for roles in table[:3]] == [(Z, X, Y), (Y, Z, X), (X, Y, Z)]
    assert table[3] == table[0]


@given(grids, st.integers(0, 40), st.tuples(*[st.integers(1, 9)] * 3), st.integers(0, 5))
def test_output_layout_equals_the_input_layout_of_the_next_layer(
    grid: dict[AxisName, int], vertices: int, widths: tuple[int, int, int], layer: int
) -> None:
    before = shares(grid, layer, vertices, widths[:2])
    after = shares(grid, layer + 1, vertices, widths[1:])
    assert [(share.N, share.H) for share in before] == [(share.K, share.F) for share in after]


@given(grids, st.integers(0, 40), st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(0, 2))
def test_every_element_is_replicated_over_the_third_axis_only(
    grid: dict[AxisName, int], vertices: int, shape: tuple[int, int], layer: int
) -> None:
    R, S, T = get_roles(layer, FIRST)
    everyone = shares(grid, layer, vertices, shape)
    for rows, cols, third in (("N", "K", T), ("K", "F", R), ("N", "F", S), ("F", "H", R), ("N", "H", T)):
        held = Counter(
            (i, j) for share in everyone for i in getattr(share, rows) for j in getattr(share, cols)
        )
        assert set(held.values()) <= {grid[third]}
        size = {"N": vertices, "K": vertices, "F": shape[0], "H": shape[1]}
        assert len(held) == size[rows] * size[cols]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 5))
def test_pieces_cover_the_range_and_differ_by_at_most_one(start: int, length: int, parts: int) -> None:
    pieces = [split_piece(range(start, start + length), parts, i) for i in range(parts)]
    assert [v for piece in pieces for v in piece] == list(range(start, start + length))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
