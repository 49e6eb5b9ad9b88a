"""One look a strategy, everywhere; no two alike; every row of a ledger has a group."""

from itertools import pairwise, product

import pytest

from harness.figures.breakdown import group_of
from harness.figures.palette import FOREIGN_MARKERS, GROUPS, KNOWN, STEPS, Fill, look_of
from harness.ledger import Op, Phase


def luminance(colour: str) -> float:
    """Relative luminance by the definition of the W3C."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_no_two_known_strategies_look_alike_even_without_colour() -> None:
    assert len({look.marker for look in KNOWN.values()}) == len(KNOWN)


def test_strategies_that_papers_compare_have_colours_of_their_own() -> None:
    compared = ["serial", "cagnet-1d", "cagnet-1.5d", "cagnet-2d", "cagnet-3d", "plexus", "scalegnn", "g3"]
    assert len({look_of(name).colour for name in compared}) == 8


def test_a_strategy_from_elsewhere_looks_the_same_on_every_machine() -> None:
    assert look_of("my-strategy") == look_of("my-strategy")
    looks = {look_of(f"mine-{number}") for number in range(200)}
    assert len(looks) > 50
    assert {look.marker for look in looks} == set(FOREIGN_MARKERS)
    assert not set(FOREIGN_MARKERS) & {look.marker for look in KNOWN.values()}


def test_the_hash_of_a_name_never_changes() -> None:
    """Written down: a look that changed with a version would mislead who compares two figures."""
    assert look_of("my-strategy")[:2] == ("#656364", "X")


@pytest.mark.parametrize(("phase", "op"), list(product(Phase, Op)))
def test_every_row_of_a_ledger_counts_in_one_group(phase: Phase, op: Op) -> None:
    assert group_of(phase, op, "H") in GROUPS
    assert group_of(phase, op, "A") in GROUPS


@pytest.mark.parametrize("groups", [GROUPS, STEPS])
def test_groups_have_at_most_eight_colours_and_neighbours_differ_in_grey(groups: dict[str, Fill]) -> None:
    assert len({fill.colour for fill in groups.values()}) <= 8
    assert len(set(groups.values())) == len(groups)
    fills = list(groups.values())
    for left, right in pairwise(fills):
        assert left.hatch != right.hatch or abs(luminance(left.colour) - luminance(right.colour)) > 0.15
