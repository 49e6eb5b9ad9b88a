"""Pages that are made from the code say what the code says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["architecture.svg", "architecture.md"])
def test_the_map_of_the_house_is_the_house(name: str) -> None:
    """`python docs/draw_architecture.py` makes both."""
    made = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))["made"]()
    found = {path.name: data for path, data in made.items()}
    assert (ROOT / "docs" / name).read_bytes() == found[name]
