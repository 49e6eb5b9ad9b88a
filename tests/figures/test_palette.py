"""One look a strategy, everywhere; no two alike, for any eye and in grey; every row of a ledger has a group.

Distances are CIEDE2000 between colours as a viewer sees them: with full vision, and without green or red receptors by
the matrices of Machado, Oliveira and Fernandes (2009) at full severity.
"""

import re
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from harness.ledger import Op, Phase
from harness.registry import registered_strategies
from harness.report.figures.operation_groups import group_of_operation
from harness.report.figures.palette import (
    BUILT_IN,
    FAILURE_MARKERS,
    FAMILIES,
    FREE_COLOURS,
    FREE_MARKERS,
    GRAPH_MARKERS,
    GROUPS,
    PAPER,
    STEPS,
    Fill,
    lighten_for_dark,
    look_of,
    named_colours,
    outline_marker,
)

Colour = np.ndarray

FULL = np.eye(3)
NO_GREEN = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
NO_RED = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
DARK = "#171a1f"


def linear(colour: str) -> Colour:
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour: str, eye: Colour = FULL) -> Colour:
    """CIELAB under D65 of the colour that an eye sees."""
    seen = np.clip(eye @ linear(colour), 0, 1)
    ratio = TO_XYZ @ seen / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: Colour, other: Colour) -> float:
    """CIEDE2000 (Sharma, Wu and Dalal, 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = np.hypot(stretch * a1, b1), np.hypot(stretch * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, stretch * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    light, chroma, hue = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    middle_l, middle_c = (l1 + l2) / 2, (c1 + c2) / 2
    middle_h = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    waves = zip((-0.17, 0.24, 0.32, -0.20), (1, 2, 3, 4), (-30, 0, 6, -63), strict=True)
    t = 1 + sum(size * np.cos(np.radians(times * middle_h + shift)) for size, times, shift in waves)
    scale_l = 1 + 0.015 * (middle_l - 50) ** 2 / np.sqrt(20 + (middle_l - 50) ** 2)
    scale_c, scale_h = 1 + 0.045 * middle_c, 1 + 0.015 * middle_c * t
    bend = np.sin(np.radians(60 * np.exp(-(((middle_h - 275) / 25) ** 2))))
    rotation = -2 * np.sqrt(middle_c**7 / (middle_c**7 + 25**7)) * bend
    x, y, z = light / scale_l, chroma / scale_c, hue / scale_h
    return float(np.sqrt(x**2 + y**2 + z**2 + rotation * y * z))


def apart(one: str, other: str) -> float:
    """The least distance of two colours over all eyes."""
    return min(distance(lab(one, eye), lab(other, eye)) for eye in (FULL, NO_GREEN, NO_RED))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by the W3C."""
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_distance_is_that_of_the_published_pairs() -> None:
    """Three of the pairs that Sharma, Wu and Dalal print."""
    for one, other, expected in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1, 2), (50, 0, 0), 2.3669),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ):
        assert distance(np.array(one), np.array(other)) == pytest.approx(expected, abs=5e-5)


def test_every_built_in_strategy_has_its_look_by_hand() -> None:
    built_in = {
        point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")
    }
    assert built_in == set(BUILT_IN)
    assert len({look.colour for look in BUILT_IN.values()}) == len(BUILT_IN)


def test_no_two_strategies_with_one_marker_are_confused_by_any_eye_or_in_grey() -> None:
    for one, other in combinations(BUILT_IN.values(), 2):
        if one.marker == other.marker:
            assert apart(one.colour, other.colour) > 15, (one, other)
            assert abs(lab(one.colour)[0] - lab(other.colour)[0]) > 7, (one, other)


def test_families_share_a_hue_and_their_members_differ_in_grey_and_in_marker() -> None:
    for family, members in FAMILIES.items():
        looks = list(members.values())
        assert len({look.marker for look in looks}) == len(looks)
        light = sorted(lab(look.colour)[0] for look in looks)
        assert all(above - below > 8 for below, above in pairwise(light)), (family, light)
        hues = [np.degrees(np.arctan2(*lab(look.colour)[:0:-1])) % 360 for look in looks]
        spread = max(abs((one - other + 180) % 360 - 180) for one, other in product(hues, hues))
        assert family == "grey" or spread < 65, (family, hues)


ALL_MARKERS = {*(look.marker for look in BUILT_IN.values()), *FREE_MARKERS, *GRAPH_MARKERS}


def test_no_marker_is_a_cross_because_a_cross_is_a_failure() -> None:
    assert not ALL_MARKERS & {"x", "X", "+", "P", *FAILURE_MARKERS.values()}


def test_markers_have_distinct_shapes_in_charts_of_the_report() -> None:
    """A shape is an outline within -1 to 1, as Vega-Lite expects, with y pointing down."""
    shapes = {marker: outline_marker(marker) for marker in ALL_MARKERS}
    assert len(set(shapes.values())) == len(shapes)
    assert shapes["o"] == "M-.8,0A.8,.8 0 1,0 .8,0A.8,.8 0 1,0 -.8,0Z"
    assert shapes["^"] == "M0,-1L-1,1L1,1Z", "the tip is above"
    for marker, shape in shapes.items():
        numbers = [float(number) for number in re.findall(r"-?[0-9.]+", shape)]
        assert marker == "o" or max(map(abs, numbers)) == 1


def test_colours_can_be_seen_on_light_and_on_dark_paper() -> None:
    for colour in named_colours().values():
        assert contrast(colour, PAPER) > 1.4
        assert contrast(lighten_for_dark(colour), DARK) > 2.4, colour
    assert len({lighten_for_dark(look.colour) for look in BUILT_IN.values()}) == len(BUILT_IN)


def test_plugin_strategy_has_a_distinct_look() -> None:
    """The same on every machine, and never that of a built-in strategy or of another plugin in the same tables."""
    assert look_of("my-strategy") == look_of("my-strategy")
    names = [f"mine-{number}" for number in range(20)]
    looks = {look_of(name, names)[:2] for name in names}
    assert len(looks) == len(names)
    for colour, marker in looks:
        assert colour in FREE_COLOURS and marker in FREE_MARKERS
        assert colour not in {look.colour for look in BUILT_IN.values()}
        assert marker not in {look.marker for look in BUILT_IN.values()}
    assert {look_of(f"mine-{number}").marker for number in range(200)} == set(FREE_MARKERS)


def test_a_known_strategy_keeps_its_look_beside_any_other() -> None:
    assert all(look_of(name, ["mine", "yours"]) == look for name, look in BUILT_IN.items())


def test_the_hash_of_a_name_never_changes() -> None:
    """Written down: a look that changed with a version would mislead who compares two figures."""
    assert look_of("my-strategy")[:2] == ("#008c92", "d")


@pytest.mark.parametrize(("phase", "op"), list(product(Phase, Op)))
def test_every_row_of_a_ledger_counts_in_one_group(phase: Phase, op: Op) -> None:
    assert group_of_operation(phase, op, "H") in GROUPS
    assert group_of_operation(phase, op, "A") in GROUPS


@pytest.mark.parametrize("groups", [GROUPS, STEPS])
def test_group_colours_differ_for_colour_blind_readers_and_in_grey(groups: dict[str, Fill]) -> None:
    fills = list(groups.values())
    assert len({fill.colour for fill in fills}) == len(fills)
    for one, other in combinations(fills, 2):
        assert one.hatch != other.hatch or apart(one.colour, other.colour) > 10, (one, other)
    for one, other in pairwise(fills):
        assert one.hatch != other.hatch or abs(lab(one.colour)[0] - lab(other.colour)[0]) > 10, (one, other)


def test_hatches_are_lines_because_circles_fill_a_page() -> None:
    assert {sign for fill in (*GROUPS.values(), *STEPS.values()) for sign in fill.hatch} <= set("/\\|-")
