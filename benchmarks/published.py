"""Held-out claims of the five papers beside predictions by the machines' cards.

    python benchmarks/published.py

No constant of a card was fitted on these claims; docs/prediction.md says what was fitted on what. Settings that a paper
leaves open are an interval too: the claim is predicted for each of them, and the ends are the outermost. A ratio of two
epochs shares the constants of both, so its interval is that of what does not cancel. A claim that is a sign (falls up
to so many devices, never faster) holds or does not; it has no width. Claims that no prediction reaches are listed with
the reason, and count as missed.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from math import exp, log, sqrt
from statistics import median
from typing import Any, NamedTuple

from measuring import Table, argument_parser

from harness.experiment.defaults import make_spec, nested
from harness.experiment.known_graph import facts_of_card, on_twins
from harness.ledger import MOVING, AxisName
from harness.ledger.tape import Product
from harness.parallel.roles import roles_of, share_of
from harness.predict.prediction import RESIDUAL, Prediction, predict
from harness.predict.pricing import bandwidth, constants, placed, spmm_seconds
from harness.predict.twins import predict_from_twins
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.root import project_root
from harness.store.catalog import load_card
from harness.strategy import Ready, admit
from strategies.plexus.plexus import FIRST

PLEXUS = {"model.layers": 3, "model.hidden": 128, "training.features": True, "dataset.permutation": "double"}
GRIDS = {
    "reddit": {4: "1x4x1", 8: "1x8x1", 16: "1x8x2", 32: "1x16x2", 64: "2x16x2", 128: "2x16x4"},
    "ogbn-products": {
        **{4: "1x1x4", 8: "4x1x2", 16: "2x4x2", 32: "2x8x2", 64: "2x8x4"},
        **{128: "4x8x4", 256: "4x16x4", 512: "4x16x8"},
    },
    "isolate-3-8m": {
        **{16: "2x4x2", 32: "2x8x2", 64: "2x8x4", 128: "4x8x4"},
        **{256: "4x16x4", 512: "4x16x8", 1024: "8x16x8"},
    },
    "products-14m": {
        **{8: "4x1x2", 16: "2x4x2", 32: "2x8x2", 64: "2x8x4", 128: "4x8x4"},
        **{256: "4x16x4", 512: "4x16x8", 1024: "8x16x8"},
    },
    "europe-osm": {64: "2x8x4", 128: "4x8x4", 256: "4x16x4", 512: "4x16x8", 1024: "8x16x8"},
    "ogbn-papers100m": {
        **{64: "4x8x2", 128: "4x16x2", 256: "4x16x4", 512: "8x16x4"},
        **{1024: "8x32x4", 2048: "8x32x8"},
    },
}
"""The grids of Plexus' own scaling runs (benchmarks/data)."""
TWINS = {
    "reddit": ("1/32", "1/16", "1/8"),
    "isolate-3-8m": ("1/512", "1/256", "1/128"),
    "products-14m": ("1/256", "1/128", "1/64"),
    "ogbn-products": ("1/20", "1/12", "1/7"),
}
"""The twins that tell the boundaries of parts, the neighbours that are drawn and the hits of caches."""
CAGNET = {"model.layers": 2, "model.hidden": 16}
SCALEGNN = {
    "model.layers": 3,
    "model.projection": True,
    "model.norm": True,
    "model.residual": True,
    "model.dropout": 0.5,
}
FASTEST = {"prefetch": True, "wire": "bf16", "fused": True, "overlap": True}
G3 = {"model.layers": 2, "model.hidden": 16, "model.kind": "sage", "training.optimizer": "adam"}


class Band(NamedTuple):
    """A predicted number and its interval."""

    value: float
    low: float
    high: float


class Claim(NamedTuple):
    """A claim: the printed number and a prediction of the same; or a statement that holds or does not."""

    id: str
    printed: float | str
    what: str
    predicted: Callable[[], Band | bool]


@cache
def epoch(
    strategy: str, dataset: str, machine: str, ranks: int, grid: str, settings: tuple[Any, ...]
) -> Prediction:
    """The prediction of an epoch, by the dataset's card."""
    root = project_root()
    asked = {"strategy.name": strategy, "dataset.name": dataset, "ranks": ranks, "machine": machine}
    if grid:
        asked["grid"] = grid
    facts = facts_of_card(load_card(root, dataset))
    spec = make_spec(root, nested({**asked, **dict(settings)}), "benchmark")
    return predict(Ready(admit(load_strategy(strategy), spec, facts)), load_machine_card(root, machine))


def told(
    strategy: str, dataset: str, machine: str, ranks: int, grid: str, settings: Mapping[str, Any]
) -> Prediction:
    params = {f"strategy.params.{key}": value for key, value in settings.get("params", {}).items()}
    keys = {key: value for key, value in settings.items() if key != "params"} | params
    return epoch(strategy, dataset, machine, ranks, grid, tuple(keys.items()))


@cache
def from_twins(
    strategy: str, dataset: str, machine: str, ranks: int, settings: tuple[Any, ...]
) -> Prediction:
    """The prediction of an epoch whose sizes are those of twins."""
    root = project_root()
    asked = {"strategy.name": strategy, "dataset.name": dataset, "ranks": ranks, "machine": machine}
    spec = make_spec(root, nested({**asked, **dict(settings)}), "benchmark")
    on_graph = admit(load_strategy(strategy), spec, facts_of_card(load_card(root, dataset)))
    twins = on_twins(root, on_graph, TWINS[dataset], lambda text: print(text, file=sys.stderr))
    return predict_from_twins(on_graph, load_machine_card(root, machine), twins)


def plexus(dataset: str, ranks: int) -> Prediction:
    return told("plexus", dataset, "perlmutter-measured", ranks, GRIDS[dataset][ranks], PLEXUS)


def ratio(one: Prediction, other: Prediction, machine: str) -> Band:
    """The seconds of one epoch over those of another on the same machine."""
    apart = log(RESIDUAL) ** 2
    for name, (within, _) in constants(load_machine_card(project_root(), machine)).items():
        both = [log(1 + each.shares[name] * (within - 1)) for each in (one, other)]
        apart += (both[0] - both[1]) ** 2
    value, spread = one.seconds.value / other.seconds.value, exp(sqrt(apart))
    return Band(value, value / spread, value * spread)


def envelope(bands: Iterable[Band]) -> Band:
    """The interval of all settings; the value is that of the first."""
    first, *others = bands
    every = [first, *others]
    return Band(first.value, min(band.low for band in every), max(band.high for band in every))


# Plexus.


def speedups() -> list[Band]:
    """From the smallest to the largest number of devices, dataset by dataset."""
    return [
        ratio(plexus(name, min(grids)), plexus(name, max(grids)), "perlmutter-measured")
        for name, grids in GRIDS.items()
    ]


def falls(times: list[float]) -> bool:
    return times == sorted(times, reverse=True)


def over_plexus(dataset: str, ranks: int) -> Band:
    """Sparsity-aware CAGNET over Plexus."""
    other = told(
        "cagnet-sa-1d", dataset, "perlmutter-measured", ranks, "", {**PLEXUS, "dataset.permutation": "none"}
    )
    return ratio(other, plexus(dataset, ranks), "perlmutter-measured")


def bns_over_plexus(dataset: str, ranks: int) -> Band:
    """BNS-GCN, all boundary vertices, on parts by METIS."""
    settings = {"model.layers": 3, "model.hidden": 128, "dataset.partition": "metis"}
    other = from_twins("bns-gcn", dataset, "perlmutter-measured", ranks, tuple(settings.items()))
    return ratio(other, plexus(dataset, ranks), "perlmutter-measured")


def overtakes_at_64() -> bool:
    return bns_over_plexus("products-14m", 32).value < 1 < bns_over_plexus("products-14m", 64).value


def tall_over_wide() -> Band:
    """The first product of 64 x 1 x 1 and of 1 x 64 x 1 on one device."""
    rates = load_machine_card(project_root(), "perlmutter").rates
    facts = facts_of_card(load_card(project_root(), "ogbn-products"))
    assert rates
    times = []
    for shape in (
        {AxisName.X: 64, AxisName.Y: 1, AxisName.Z: 1},
        {AxisName.X: 1, AxisName.Y: 64, AxisName.Z: 1},
    ):
        origin = dict.fromkeys(shape, 0)
        share = share_of(roles_of(0, FIRST), shape, origin, facts.vertices, (facts.features, 128))
        entries = facts.nonzeros // 64
        product = Product(len(share.N), len(share.K), len(share.F), entries, "float32", "int32")
        times.append(spmm_seconds(product, rates.spmm))
    slower = max(times) / min(times)
    return Band(slower, slower / rates.spmm.within, slower * rates.spmm.within)


def crossing() -> bool:
    """isolate-3-8m is slower at 16, products-14m beyond 64."""
    slower = {
        p: plexus("isolate-3-8m", p).seconds.value > plexus("products-14m", p).seconds.value
        for p in (16, 128)
    }
    return slower[16] and not slower[128]


# CAGNET.


def cagnet(name: str, dataset: str, ranks: int, hidden: int = 16, machine: str = "summit") -> Prediction:
    """The 1.5D scheme is on its fastest grid with replication 1, 2 or 4."""
    settings = {**CAGNET, "model.hidden": hidden}
    if name != "cagnet-1.5d":
        return told(name, dataset, machine, ranks, "", settings)
    grids = [f"{ranks // c}x{c}" for c in (1, 2, 4) if ranks % (c * c) == 0]
    return min(
        (told(name, dataset, machine, ranks, grid, settings) for grid in grids),
        key=lambda each: each.seconds.value,
    )


FIGURE_1 = {"reddit": (4, 16, 36, 64), "cagnet-amazon": (16, 36, 64, 100), "cagnet-protein": (36, 64, 100)}


def largest(dataset: str, machine: str = "summit") -> Prediction:
    """The largest bar of figure 1, or of figure 2 with one device a node: 1D, 1.5D and 2D."""
    names = ("cagnet-1d", "cagnet-1.5d", "cagnet-2d")
    bars = [cagnet(name, dataset, ranks, 16, machine) for ranks in FIGURE_1[dataset] for name in names]
    return max(bars, key=lambda each: each.seconds.value)


def under_the_axis(bar: Prediction, top: float) -> bool:
    """An axis says no more than that its largest bar is not above the top tick."""
    return bar.seconds.low <= top


def two_d_never_wins() -> bool:
    return all(
        cagnet("cagnet-2d", name, p).seconds.value >= cagnet("cagnet-1.5d", name, p).seconds.value
        for name, counts in FIGURE_1.items()
        for p in counts
    )


def moving(one: Prediction) -> float:
    return sum(each for key, each in one.entries.items() if key.op in MOVING)


def better_in_3d(dataset: str) -> float:
    """The percents by which the time of communication falls more in 3D than in 2D."""
    two, three = (
        moving(cagnet(name, dataset, few, 64)) / moving(cagnet(name, dataset, many, 64))
        for name, few, many in (("cagnet-2d", 25, 121), ("cagnet-3d", 27, 125))
    )
    return 100 * (three / two - 1)


def half_a_ring() -> bool:
    """Two rings over one socket's links have half the rate each."""
    links = load_machine_card(project_root(), "summit").links
    assert links
    one, two = (bandwidth(links, placed({AxisName.X: 8, AxisName.Y: c}, "x", links)) for c in (1, 2))
    return two == one / 2


# ScaleGNN: batch and width are open.

OPEN = [(128, 1), (256, 1), (128, 4), (256, 4)]
"""Hidden widths, and what the batch is divided by."""
BATCH = {"ogbn-papers100m": 1 << 20, "products-14m": 1 << 18, "ogbn-products": 1 << 16}
GROUP = {"ogbn-papers100m": "4x4x4", "products-14m": "4x4x2", "ogbn-products": "2x2x2"}


def scalegnn(
    dataset: str, machine: str, groups: int, open_: tuple[int, int], params: dict[str, Any]
) -> Prediction:
    hidden, divisor = open_
    ranks = groups
    for size in GROUP[dataset].split("x"):
        ranks *= int(size)
    settings = {
        **SCALEGNN,
        "model.hidden": hidden,
        "training.batch": BATCH[dataset] // divisor,
        "params": params,
    }
    return told("scalegnn", dataset, machine, ranks, f"{groups}x{GROUP[dataset]}", settings)


def line(dataset: str, machine: str, groups: int) -> Band:
    return envelope(
        ratio(
            scalegnn(dataset, machine, 1, open_, FASTEST),
            scalegnn(dataset, machine, groups, open_, FASTEST),
            machine,
        )
        for open_ in OPEN
    )


def scaling_lines() -> list[Claim]:
    lines = [
        ("SGN-100", 21.7, "ogbn-papers100m, 64 to 2048", "perlmutter"),
        ("SGN-102", 19.8, "products-14m, 32 to 1024", "perlmutter"),
        ("SGN-106", 7.8, "ogbn-products, 8 to 128", "perlmutter"),
        ("SGN-108", 22.4, "products-14m, 32 to 1024", "frontier"),
        ("SGN-112", 20.3, "ogbn-papers100m, 64 to 2048", "frontier"),
        ("SGN-116", 15.9, "ogbn-papers100m, 64 to 1024", "tuolumne"),
    ]
    found = []
    for name, printed, what, machine in lines:
        dataset, ends = what.split(", ")
        first, last = map(int, ends.split(" to "))
        title, speedup = f"ScaleGNN, {what}, {machine}", partial(line, dataset, machine, last // first)
        found.append(Claim(name, printed, title, speedup))
    return found


def optimised() -> Band:
    """All four optimisations over none, on four groups of 8."""
    return envelope(
        ratio(
            scalegnn("ogbn-products", "perlmutter", 4, open_, {}),
            scalegnn("ogbn-products", "perlmutter", 4, open_, FASTEST),
            "perlmutter",
        )
        for open_ in OPEN
    )


def over_distdgl(dataset: str) -> Band:
    """The throughput of G3 over that of DistDGL, GraphSAGE on 16 nodes."""
    sampled = {key: value for key, value in G3.items() if key != "training.optimizer"}
    fanouts = {"training.batch": 1000, "strategy.params.fanouts": (25, 10)}
    other = from_twins("distdgl", dataset, "g3-cluster", 16, tuple({**sampled, **fanouts}.items()))
    return ratio(other, told("g3", dataset, "g3-cluster", 16, "", G3), "g3-cluster")


CLAIMS = [
    Claim("PLX-003", 5.2, "Plexus, least speed-up of a line", lambda: min(speedups())),
    Claim("PLX-004", 8.7, "Plexus, largest speed-up of a line", lambda: max(speedups())),
    Claim("PLX-069", 8.0, "first product, 1x64x1 over 64x1x1", tall_over_wide),
    Claim(
        "PLX-174",
        "falls to 128",
        "Plexus on reddit",
        lambda: falls([plexus("reddit", p).seconds.value for p in GRIDS["reddit"]]),
    ),
    Claim(
        "PLX-178", 9.0, "sparsity-aware CAGNET over Plexus, reddit, 128", lambda: over_plexus("reddit", 128)
    ),
    Claim(
        "PLX-186",
        "falls to 1024",
        "Plexus on products-14m",
        lambda: falls([plexus("products-14m", p).seconds.value for p in GRIDS["products-14m"]]),
    ),
    Claim(
        "PLX-187",
        2.3,
        "sparsity-aware CAGNET over Plexus, products-14m, 128",
        lambda: over_plexus("products-14m", 128),
    ),
    Claim(
        "PLX-192",
        "at most 0.7 s",
        "Plexus on products-14m, 32 to 256",
        lambda: max(plexus("products-14m", p).seconds.low for p in (32, 64, 128, 256)) <= 0.7,
    ),
    Claim("PLX-177", 6.0, "BNS-GCN over Plexus, reddit, 32", lambda: bns_over_plexus("reddit", 32)),
    Claim(
        "PLX-180", 3.8, "BNS-GCN over Plexus, isolate-3-8m, 256", lambda: bns_over_plexus("isolate-3-8m", 256)
    ),
    Claim(
        "PLX-188", 4.0, "BNS-GCN over Plexus, products-14m, 256", lambda: bns_over_plexus("products-14m", 256)
    ),
    Claim("PLX-189", "from 64 on", "Plexus faster than BNS-GCN, products-14m", overtakes_at_64),
    Claim("PLX-194", "crosses at 64", "Plexus, products-14m and isolate-3-8m", crossing),
    Claim(
        "PLX-197",
        "falls to 2048",
        "Plexus on ogbn-papers100m",
        lambda: falls([plexus("ogbn-papers100m", p).seconds.value for p in GRIDS["ogbn-papers100m"]]),
    ),
    Claim(
        "CAG-054",
        "at most 0.05 s",
        "1.5D on reddit, 4",
        lambda: cagnet("cagnet-1.5d", "reddit", 4).seconds.low <= 0.05,
    ),
    Claim(
        "CAG-064",
        "at most 3.0 s",
        "bars of figure 1, Amazon",
        lambda: under_the_axis(largest("cagnet-amazon"), 3.0),
    ),
    Claim(
        "CAG-065",
        "at most 2.5 s",
        "bars of figure 1, Protein",
        lambda: under_the_axis(largest("cagnet-protein"), 2.5),
    ),
    Claim(
        "CAG-067",
        "at most 1.5 s",
        "bars of figure 2, Protein",
        lambda: under_the_axis(largest("cagnet-protein", "summit-one"), 1.5),
    ),
    Claim(
        "CAG-075",
        "to 36 only",
        "2D on reddit falls to 36 and rises after",
        lambda: (
            falls([cagnet("cagnet-2d", "reddit", p).seconds.value for p in (4, 16, 36)])
            and cagnet("cagnet-2d", "reddit", 64).seconds.value
            > 0.95 * cagnet("cagnet-2d", "reddit", 36).seconds.value
        ),
    ),
    Claim("CAG-076", "never", "2D faster than the best 1.5D", two_d_never_wins),
    Claim(
        "CAG-083",
        "falls to 125",
        "3D on Amazon and Protein",
        lambda: all(
            falls([cagnet("cagnet-3d", name, p, 64).seconds.value for p in (27, 64, 125)])
            for name in ("cagnet-amazon", "cagnet-protein")
        ),
    ),
    Claim(
        "CAG-084",
        "5 to 10 %",
        "communication of 3D falls more than that of 2D",
        lambda: all(5 <= better_in_3d(name) <= 10 for name in ("cagnet-amazon", "cagnet-protein")),
    ),
    Claim(
        "CAG-086",
        "slower below",
        "3D slower than 2D on Amazon at 25/27",
        lambda: (
            cagnet("cagnet-3d", "cagnet-amazon", 27, 64).seconds.value
            > cagnet("cagnet-2d", "cagnet-amazon", 25, 64).seconds.value
        ),
    ),
    Claim("CAG-087", "half", "rate of each of two rings over one socket", half_a_ring),
    Claim("SGN-018", 1.66, "ScaleGNN, four optimisations over none, 32", optimised),
    *scaling_lines(),
    Claim("G3-068", 2.04, "G3 over DistDGL, ogbn-products, 16", lambda: over_distdgl("ogbn-products")),
]
NOT_REACHED = {
    "SGN-093": "a forward pass alone: epochs are predicted",
    "G3-065, 066, 070": "bins of 1000 vertices of papers100m and twitter-2010: a replay takes an hour here",
    "G3-111, 113, 116": "DistDGL with four layers or wide features: twins large enough take hours here",
    "MBS-004": "Quiver on 128 devices: an epoch of a twin has four steps only from 200 million nonzeros on",
}


def main() -> None:
    argument_parser(__doc__).parse_args()
    table = Table("claim", "what", "printed", "predicted", "between", "printed inside")
    hits, widths = 0, []
    for claim in CLAIMS:
        told_ = claim.predicted()
        if isinstance(told_, bool):
            hits += told_
            table.row(claim.id, claim.what, str(claim.printed), "holds" if told_ else "does not hold", "", "")
            continue
        assert isinstance(claim.printed, float)
        inside = told_.low <= claim.printed <= told_.high
        hits += inside
        widths.append(told_.high / told_.low)
        between = f"{told_.low:.3g} - {told_.high:.3g}"
        table.row(
            claim.id,
            claim.what,
            f"{claim.printed:g}",
            f"{told_.value:.3g}",
            between,
            "yes" if inside else "no",
        )
    missed = sum(len(ids.split(",")) for ids in NOT_REACHED)
    print(
        f"\n{hits} of {len(CLAIMS) + missed} hold or lie inside; {missed} are not reached. The median interval is a "
        f"factor of {median(widths):.2f} wide, the widest {max(widths):.2f}."
    )
    for ids, reason in NOT_REACHED.items():
        print(f"- {ids}: {reason}")


if __name__ == "__main__":
    main()
