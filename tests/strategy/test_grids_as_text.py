"""A printed grid is accepted by --grid as it is printed."""

import pytest

from harness.registry import load_strategy, registered_strategies
from harness.spec.spec import format_grid, label_grid
from harness.strategy.admit import parse_grid

BUILT_IN = [point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("ranks", [1, 4, 8, 12])
def test_printed_grids_parse_to_themselves(name: str, ranks: int) -> None:
    strategy = load_strategy(name)
    for grid in strategy.grids(ranks):
        assert parse_grid(strategy, format_grid(grid), ranks) == grid
        assert parse_grid(strategy, label_grid(grid), ranks) == grid


def test_sizes_alone_are_taken_along_the_axes_of_the_strategy() -> None:
    plexus = load_strategy("plexus")
    assert format_grid(parse_grid(plexus, "1x2x4", 8)) == "x=1,y=2,z=4"
