"""The laws a strategy is held to, each checked on every rank of a case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from harness.check.case import Case, RankResult
from harness.check.counts import ScipyCounts
from harness.check.reference import Trained
from harness.ledger import TensorName
from harness.replay import Line, outline, replay
from harness.strategy import Counts, Piece, Strategy

TOLERANCE = 1e-12
"""On ||x - y|| / ||y|| in double precision. The largest seen in a right strategy is below 1e-14."""

ROUNDINGS = 8
"""How often the error of one rounding, for strategies that round what they send."""


@dataclass(frozen=True)
class Finding:
    """One law on one case."""

    law: str
    case: str
    holds: bool
    detail: str


def equal_to_serial(case: Case, ranks: Sequence[RankResult], serial: Trained) -> list[Finding]:
    """Losses of every epoch, first gradients, last parameters and outputs are the pieces of the serial ones."""
    strategy = case.strategy()
    if strategy.rounding:
        return [_near_serial(case, ranks, serial, strategy.rounding)]
    worst: dict[str, float] = {}
    for number, rank in enumerate(ranks):
        compared = {
            "losses": [(_numbers(rank.losses), _numbers(serial.losses))],
            "gradients": _pairs(rank.gradients, serial.gradients, strategy.parameters_of(number)),
            "parameters": _pairs(rank.parameters, serial.parameters, strategy.parameters_of(number)),
            "outputs": _pairs([rank.output], [serial.output], [strategy.output(rank.at)]),
        }
        for name, pairs in compared.items():
            worst[name] = max([worst.get(name, 0.0), *(_distance(mine, theirs) for mine, theirs in pairs)])
    answers = ", ".join(f"{name} {hits.right}/{hits.of}" for name, hits in serial.hits.items())
    return [
        *(
            Finding(f"{name} equal serial", case.name, error <= TOLERANCE, f"{error:.0e}")
            for name, error in worst.items()
        ),
        Finding("answers equal serial", case.name, all(rank.hits == serial.hits for rank in ranks), answers),
    ]


def _near_serial(case: Case, ranks: Sequence[RankResult], serial: Trained, rounding: float) -> Finding:
    """Who rounds what it sends has nearly the same losses; how far weights drift apart is up to the training."""
    error = max(_distance(_numbers(rank.losses), _numbers(serial.losses)) for rank in ranks)
    near = error <= ROUNDINGS * rounding
    return Finding("losses near serial", case.name, near, f"{error:.0e}, rounded by {rounding:.0e}")


def equal_to_formula(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """The ledger's payload words are the formula's, row by row, on every rank."""
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    wrong = [
        line for number, rank in enumerate(ranks) for line in _difference(strategy, counts, number, rank)
    ]
    total = sum(sum(rank.words.values()) for rank in ranks)
    detail = "; ".join(wrong[:3]) or f"{total:,.0f}"
    return Finding("words equal the formula", case.name, not wrong, detail)


def equal_to_replay(case: Case, ranks: Sequence[RankResult]) -> list[Finding]:
    """Replayed on shapes, every rank issues and waits for the same things in the same order, and holds as much."""
    strategy, store = case.strategy(), case.store()
    wrong, heavier = [], []
    for number, rank in enumerate(ranks):
        try:
            replayed = replay(strategy, number, store)
        except Exception as error:
            return [Finding("equal to its replay", case.name, False, f"{type(error).__name__}: {error}")]
        wrong += _first_difference(number, rank.lines, outline(replayed.events))
        if rank.persistent_bytes != replayed.persistent_bytes:
            heavier.append(
                f"rank {number}: holds {_told(rank.persistent_bytes)}; replayed {_told(replayed.persistent_bytes)}"
            )
    lines = sum(len(rank.lines) for rank in ranks)
    held = f"{len(ranks)} ranks"
    return [
        Finding("equal to its replay", case.name, not wrong, "; ".join(wrong[:3]) or f"{lines:,} events"),
        Finding("memory equals the replay", case.name, not heavier, "; ".join(heavier[:3]) or held),
    ]


def _first_difference(number: int, run: Sequence[Line], replayed: Sequence[Line]) -> list[str]:
    for place, (mine, theirs) in enumerate(zip_longest(run, replayed)):
        if mine != theirs:
            return [f"rank {number}, event {place}: ran {mine}, replayed {theirs}"]
    return []


def memory_equal_to_formula(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """What every rank holds all the time is what the strategy says, its nonzeros counted by scipy."""
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    wrong = []
    for number, rank in enumerate(ranks):
        formula = {name: size for name, size in strategy.memory(rank.at, counts).items() if size}
        held = {name: size for name, size in rank.persistent_bytes.items() if size}
        if held != formula:
            wrong.append(f"rank {number}: holds {_told(held)}; formula {_told(formula)}")
    total = sum(sum(rank.persistent_bytes.values()) for rank in ranks)
    return Finding(
        "memory equals the formula", case.name, not wrong, "; ".join(wrong[:3]) or f"{total:,} bytes"
    )


def _told(sizes: Mapping[TensorName, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sorted(sizes.items()))


def adds_up(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """At every instant one entry is current: together they are the epoch."""
    worst = max(rank.unaccounted for rank in ranks)
    return Finding("entries add up to the epoch", case.name, worst == 0, f"{worst:g} ticks missing")


def repeats(case: Case, once: Sequence[RankResult], again: Sequence[RankResult]) -> Finding:
    """The same seed gives the same bits, and so do calls that are composed out of rounds."""
    same = all(
        mine.losses == theirs.losses and all(map(torch.equal, mine.parameters, theirs.parameters))
        for mine, theirs in zip(once, again, strict=True)
    )
    return Finding("same seed, same bits", case.name, same, f"{len(once)} ranks, twice, once in rounds")


def _difference(strategy: Strategy, counts: Counts, number: int, rank: RankResult) -> list[str]:
    formula = strategy.words(rank.at, counts)
    rows = sorted(formula.keys() | rank.words.keys())
    return [
        f"rank {number}: {' '.join(map(str, row))}: "
        f"sent {rank.words.get(row, 0):,.0f}, formula {formula.get(row, 0):,.0f}"
        for row in rows
        if rank.words.get(row, 0) != formula.get(row, 0)
    ]


def _pairs(
    mine: Sequence[Tensor], theirs: Sequence[Tensor], pieces: Sequence[Piece]
) -> list[tuple[Tensor, Tensor]]:
    return [
        (part, whole[piece.rows.start : piece.rows.stop, piece.cols.start : piece.cols.stop])
        for part, whole, piece in zip(mine, theirs, pieces, strict=True)
    ]


def _numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _distance(mine: Tensor, theirs: Tensor) -> float:
    """||x - y|| / ||y||; infinite where shapes differ or a number is not finite."""
    if mine.shape != theirs.shape or not bool(mine.isfinite().all()):
        return float("inf")
    difference, size = float((mine - theirs).norm()), float(theirs.norm())
    return difference / size if size else difference
