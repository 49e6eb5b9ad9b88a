"""The laws a strategy is held to, each checked on every rank of a case."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.check.case import Case, RankResult
from harness.check.reference import Trained
from harness.strategy import Piece, Strategy

TOLERANCE = 1e-12
"""On ||x - y|| / ||y|| in double precision. The largest seen in a right strategy is below 1e-14."""


@dataclass(frozen=True)
class Finding:
    """One law on one case."""

    law: str
    case: str
    holds: bool
    detail: str


def equal_to_serial(case: Case, ranks: Sequence[RankResult], serial: Trained) -> list[Finding]:
    """Losses of every epoch, first gradients, last weights and outputs are the pieces of the serial ones."""
    strategy = case.strategy()
    worst: dict[str, float] = {}
    for number, rank in enumerate(ranks):
        compared = {
            "losses": [(_numbers(rank.losses), _numbers(serial.losses))],
            "gradients": _pairs(rank.gradients, serial.gradients, strategy.weights_of(number)),
            "weights": _pairs(rank.weights, serial.weights, strategy.weights_of(number)),
            "outputs": _pairs([rank.output], [serial.output], [strategy.output(rank.at)]),
        }
        for name, pairs in compared.items():
            worst[name] = max([worst.get(name, 0.0), *(_distance(mine, theirs) for mine, theirs in pairs)])
    return [
        Finding(f"{name} equal serial", case.name, error <= TOLERANCE, f"{error:.0e}")
        for name, error in worst.items()
    ]


def equal_to_formula(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """The ledger's payload words are the formula's, row by row, on every rank."""
    strategy = case.strategy()
    wrong = [line for number, rank in enumerate(ranks) for line in _difference(strategy, number, rank)]
    total = sum(sum(rank.words.values()) for rank in ranks)
    detail = "; ".join(wrong[:3]) or f"{total:,.0f}"
    return Finding("words equal the formula", case.name, not wrong, detail)


def _difference(strategy: Strategy, number: int, rank: RankResult) -> list[str]:
    formula = strategy.words(rank.at)
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
