"""Fits the constants of links to published times of collectives, with the prices of `harness.prediction.pricing`.

The points are calls of NCCL on Perlmutter, of groups of consecutive ranks, which all communicate at the same time. The
fit minimises the squared logarithms of predicted over measured times. No result of a paper is used.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.base.formatting import GB
from harness.ledger import AxisName, Op
from harness.prediction.calibration.term_fit import compute_factor
from harness.prediction.pricing import MICRO, CallBytes, place_axis, price_call
from harness.spec.machine_card import Constant, MachineCard

POINTS = Path(__file__).parent / "data" / "perlmutter_collectives.csv"
SMALL, LARGE = 1.0, 4.0
"""Latency dominates calls of at most SMALL megabytes, and bandwidth calls of at least LARGE."""
COPY_GBS, LAUNCH_US = 0.8 * 1448, 6.0
"""The memory bandwidth and the launch of the kernel that a2av adds: an A100's datasheet, of which it reaches 0.8."""
START = {
    "call_us": 40.0,
    "intra_latency_us": 0.5,
    "latency_us": 10.0,
    "peer_gbs": 50.0,
    "node_gbs": 90.0,
    "exchange_us": 80.0,
    "all_to_all_share": 0.5,
}
"""The values from which the search starts. The latency inside a node keeps its value, because the points do not show
it: small calls of four ranks are no slower than those of two."""
RINGS = ("call_us", "latency_us", "peer_gbs", "node_gbs")
EXCHANGES = ("exchange_us", "all_to_all_share")
REPORTED_AXES = {(1, 4): (100.0, 200.0), (2, 4): (30.0, 50.0), (4, 4): (13.0, 16.0)}
"""The bandwidths that the same authors report of axes in training, by the distance and the number of members, in 10^9
bytes per second: 100 and more inside a node, less where two and four axes share the links of a node."""
AXIS_MEGABYTES = 32.0
"""The size of a message in training: tens of megabytes."""
REPORTED_EXCHANGES = {(16, 1 << 32): (0.2, 0.3), (32, 1 << 32): (0.2, 0.3)}
"""The seconds of an all-to-all on 4 and 8 nodes of Perlmutter, by ranks and bytes (github.com/NVIDIA/nccl-tests, issue
139)."""
NORMAL_MEDIAN = 0.6745
"""The median distance from the mean of a normal variable, in standard deviations."""
Numbers = NDArray[np.float64]


class Point(NamedTuple):
    """A measured call of a group of consecutive ranks."""

    ranks: int
    megabytes: float
    op: Op
    """ALL_TO_ALL for the calls that emulate the others."""
    measured: float
    """The seconds of the call."""
    extra: float
    """The seconds of the kernel that belongs to the emulation."""

    def is_inside(self, card: MachineCard) -> bool:
        """Return True if the ranks are on one node."""
        assert card.links
        return self.ranks <= card.links.devices_per_node


def read_points() -> list[Point]:
    """Read the published times."""
    with POINTS.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    points = []
    for row in rows:
        ranks, megabytes = int(row["ranks"]), float(row["mb"])
        copied = (
            1e6 * megabytes * (1 + 1 / ranks)
        )  # each element is written once and read once, or the reverse
        extra = LAUNCH_US * MICRO + copied / (GB * COPY_GBS)
        for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER):
            ms, emulated_ms = float(row[f"{op}_ms"]), float(row[f"{op}_a2av_ms"])
            points.append(Point(ranks, megabytes, op, 1e-3 * ms, 0.0))
            points.append(Point(ranks, megabytes, Op.ALL_TO_ALL, 1e-3 * emulated_ms, extra))
    return points


def predict_seconds(card: MachineCard, point: Point) -> float:
    """Return the predicted seconds of a call, with the kernel of an emulation."""
    assert card.links
    buffer = 1e6 * point.megabytes
    size = CallBytes(point.op, buffer, buffer * (point.ranks - 1) / point.ranks)
    axis = place_axis({AxisName.X: point.ranks}, AxisName.X, card.links)
    return float(price_call(size, axis, card)[1].sum()) + point.extra


def predict_axis_bandwidth(card: MachineCard, before: int, size: int) -> float:
    """Return the bytes per second of an all-gather on an axis, as an application would compute it."""
    assert card.links
    received = 1e6 * AXIS_MEGABYTES * (size - 1) / size
    axis = place_axis({AxisName.X: size, AxisName.Y: before}, AxisName.X, card.links)
    _, seconds = price_call(CallBytes(Op.ALL_GATHER, 1e6 * AXIS_MEGABYTES, received), axis, card)
    return received / float(seconds.sum())


def predict_exchange(card: MachineCard, ranks: int, size: int) -> float:
    """Return the seconds of an all-to-all between all ranks."""
    return predict_seconds(card, Point(ranks, size / 1e6, Op.ALL_TO_ALL, 1.0, 0.0))


def change_links(card: MachineCard, values: Mapping[str, float]) -> MachineCard:
    """Return the card with other constants of links. All direct links of a device together are its bandwidth."""
    assert card.links
    named = {name: Constant(value=value, within=1.0, source="fitted") for name, value in values.items()}
    if "peer_gbs" in values:
        intra = (card.links.devices_per_node - 1) * values["peer_gbs"]
        named["intra_gbs"] = Constant(value=intra, within=1.0, source="fitted")
    return card.model_copy(update={"links": card.links.model_copy(update=named)})


def compute_ratios(card: MachineCard, points: Sequence[Point]) -> Numbers:
    """Return the ratio of predicted to measured seconds of each point."""
    return np.array([predict_seconds(card, point) / point.measured for point in points])


def fit_constants(card: MachineCard, points: Sequence[Point]) -> dict[str, float]:
    """Return the constants that fit the points best: first those of rings, then those of all-to-alls."""
    found = dict(START)
    rings = [point for point in points if point.op is not Op.ALL_TO_ALL]
    exchanges = [point for point in points if point.op is Op.ALL_TO_ALL]
    for names, some in ((RINGS, rings), (EXCHANGES, exchanges)):
        found |= _fit_named(change_links(card, found), names, some)
    return found


def _fit_named(card: MachineCard, names: Sequence[str], points: Sequence[Point]) -> dict[str, float]:
    from scipy.optimize import least_squares

    def compute_residuals(logs: Numbers) -> Numbers:
        changed = change_links(card, dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return np.log(compute_ratios(changed, points))

    start = np.log([START[name] for name in names])
    best = least_squares(compute_residuals, start, bounds=(start - 5, start + 5))
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def hold_out(card: MachineCard, points: Sequence[Point], label: Callable[[Point], object]) -> Numbers:
    """Return the ratio of each point, predicted by a fit to the points with other labels."""
    ratios = np.empty(len(points))
    for held in {label(point) for point in points}:
        others = [point for point in points if label(point) != held]
        fitted = change_links(card, fit_constants(card, others))
        for number, point in enumerate(points):
            if label(point) == held:
                ratios[number] = predict_seconds(fitted, point) / point.measured
    return ratios


class HeldOut(NamedTuple):
    """The ratios of predicted to measured seconds of all points, each predicted by a fit without its kind."""

    points: Sequence[Point]
    by_size: Numbers
    by_span: Numbers

    @classmethod
    def compute(cls, card: MachineCard, points: Sequence[Point]) -> "HeldOut":
        """Hold out every size, and every number of ranks."""
        by_size = hold_out(card, points, lambda point: point.megabytes)
        return cls(points, by_size, hold_out(card, points, lambda point: point.ranks))

    def find_factor(self, accepts: Callable[[Point], bool]) -> float:
        """Return the factor within which nine of ten accepted points are predicted, by the worse of both."""
        some = np.array([accepts(point) for point in self.points])
        return max(compute_factor(self.by_size[some]), compute_factor(self.by_span[some]))


def find_intervals(card: MachineCard, held: HeldOut) -> dict[str, float]:
    """Return the factor of the interval of each constant, from the points that it dominates."""

    def accept(exchange: bool, inside: bool, large: bool) -> Callable[[Point], bool]:
        return lambda point: (
            (point.op is Op.ALL_TO_ALL) == exchange
            and point.is_inside(card) == inside
            and (point.megabytes >= LARGE if large else point.megabytes <= SMALL)
        )

    return {
        "call_us": held.find_factor(accept(exchange=False, inside=True, large=False)),
        "latency_us": held.find_factor(accept(exchange=False, inside=False, large=False)),
        "peer_gbs": held.find_factor(accept(exchange=False, inside=True, large=True)),
        "node_gbs": held.find_factor(accept(exchange=False, inside=False, large=True)),
        "exchange_us": held.find_factor(accept(exchange=True, inside=True, large=False)),
        "all_to_all_share": held.find_factor(accept(exchange=True, inside=False, large=True)),
    }


def measure_noise(card: MachineCard, points: Sequence[Point]) -> float:
    """Return the relative deviation of calls between nodes: an all-gather and a reduce-scatter of equal bytes differ.

    It is taken from the median difference, because a few small calls differ by more than a factor of two.
    """
    seconds = {(point.op, point.ranks, point.megabytes): point for point in points}
    differences = [
        abs(np.log(point.measured / seconds[Op.REDUCE_SCATTER, point.ranks, point.megabytes].measured))
        for point in points
        if point.op is Op.ALL_GATHER and not point.is_inside(card)
    ]
    return float(median(differences) / (NORMAL_MEDIAN * 2**0.5))
