"""The stages of a layer contract over each of its vertices once, and name the owners of its rows and columns."""

from hypothesis import given
from hypothesis import strategies as st

from harness.strategies.cagnet.summa import Split3D

layouts = st.builds(
    Split3D,
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.none() | st.integers(1, 9),
)


@given(layouts)
def test_rows_of_h_contain_every_vertex_once(layout: Split3D) -> None:
    everyone = [v for i in range(layout.rows) for k in range(layout.fibres) for v in layout.rows_of(i, k)]
    assert everyone == list(range(layout.vertices))


@given(layouts)
def test_stages_of_a_layer_contain_its_vertices_in_order(layout: Split3D) -> None:
    for k in range(layout.fibres):
        mine = [v for part in layout.layer(k) for v in part]
        assert [v for stage in layout.stages(k) for v in stage.vertices] == mine
        assert all(stage.vertices for stage in layout.stages(k))
        assert all(len(stage.vertices) <= (layout.width or layout.vertices) for stage in layout.stages(k))


@given(layouts)
def test_stage_names_the_owners_of_its_rows_and_columns(layout: Split3D) -> None:
    for k in range(layout.fibres):
        columns = [[v for part in layout.columns_of(j, k) for v in part] for j in range(layout.cols)]
        for stage in layout.stages(k):
            assert set(stage.vertices) <= set(layout.rows_of(stage.row, k))
            assert set(stage.vertices) <= set(columns[stage.col])
        assert sorted(v for column in columns for v in column) == [
            v for part in layout.layer(k) for v in part
        ]


@given(st.integers(1, 30), st.integers(1, 5))
def test_square_grid_that_divides_the_vertices_has_one_stage_per_row(block: int, side: int) -> None:
    """Algorithm 3's loop: sqrt(P) stages, the k-th from grid row and grid column k."""
    stages = Split3D(block * side, side, side).stages(0)
    assert [(stage.row, stage.col) for stage in stages] == [(k, k) for k in range(side)]
