"""The verdict on a claim: the printed value beside ours, whether it holds, and if it cannot be tested, why.

A value of ours without an interval is held against the claim's tolerance; a predicted one has an interval, in which the
printed value has to lie. No verdict rests on a constant that was fitted on its claim: such a claim is `fitted`, and is
shown without a verdict.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness.claims.bands import Band, NotHereError
from harness.claims.claims import Claim, read_claims
from harness.claims.evaluator import Evaluator
from harness.errors import UserError
from harness.experiment.paper_figures import check_known
from harness.progress import OnStep, ignore_step, report_steps

FACTOR = 2.0
"""A value that misses its tolerance, and the printed one by no more than this factor, is `within`."""
SHARES = {"1%": 0.01, "10%": 0.1}
EXACT = ("exact", "1%")
"""Tolerances that a factor does not stand in for."""


class Result(StrEnum):
    """How a claim compares with ours."""

    HOLDS = "holds"
    WITHIN = "within a factor"
    CONTRADICTED = "contradicted"
    FITTED = "fitted"
    UNTESTED = "cannot be tested here"


class Verdict(NamedTuple):
    """A claim and what was found."""

    claim: Claim
    result: Result
    ours: str = ""
    """Our value, with its interval if it has one."""
    ratio: Band | None = None
    """Ours over the printed number."""
    reason: str = ""
    """Why it cannot be tested."""

    def as_row(self, paper: str) -> dict[str, Any]:
        """The verdict as a row of the table `claims`."""
        said = ("id", "figure", "place", "what", "config", "printed", "basis")
        ratio = self.ratio
        return {
            "paper": paper,
            **{name: getattr(self.claim, name) for name in said},
            "ours": self.ours,
            "formula": self.claim.ours,
            "ratio": ratio and ratio.value,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "verdict": str(self.result),
            "reason": self.reason or self.claim.note,
        }


class Wanted(NamedTuple):
    """The claims to judge; by default all."""

    paper: str | None = None
    figures: tuple[str, ...] = ()
    """The figures and tables that show them; none for all, and those of the text too."""
    held_out: bool = False
    """Those alone that were held out from every fit."""

    def chosen(self, root: Path) -> dict[str, list[Claim]]:
        """These claims, by paper; a paper without any is left out."""
        check_known(root, self.figures, "--figure")
        chosen = {
            name: [claim for claim in claims if self._has(claim)]
            for name, claims in read_claims(root, self.paper).items()
        }
        return {name: claims for name, claims in chosen.items() if claims}

    def _has(self, claim: Claim) -> bool:
        shown = not self.figures or claim.figure in self.figures
        return shown and (claim.fitted == "held out" or not self.held_out)


def judge_all(
    root: Path,
    evaluator: Evaluator,
    wanted: Wanted | None = None,
    *,
    quick: bool = False,
    on_step: OnStep = ignore_step,
) -> dict[str, list[Verdict]]:
    """The verdicts by paper. `quick` leaves predictions out."""
    chosen = (wanted or Wanted()).chosen(root)
    verdicts: dict[str, list[Verdict]] = {name: [] for name in chosen}
    pairs = [(name, claim) for name, claims in chosen.items() for claim in claims]
    for name, claim in report_steps(pairs, lambda pair: f"judging {pair[1].id}", on_step):
        verdicts[name].append(judged(claim, evaluator, quick=quick))
    return verdicts


def judged(claim: Claim, evaluator: Evaluator, *, quick: bool = False) -> Verdict:
    """Evaluates the formula of a claim, and compares."""
    if not claim.ours:
        return Verdict(claim, Result.UNTESTED, reason=claim.note)
    if quick and claim.basis == "prediction":
        return Verdict(claim, Result.UNTESTED, reason="predictions were left out (--quick)")
    try:
        ours = evaluator.value(claim.ours)
    except NotHereError as missing:
        return Verdict(claim, Result.UNTESTED, reason=str(missing))
    except UserError as refusal:
        raise UserError(f"{claim.id}: the formula {claim.ours} fails. {refusal}") from refusal
    return compared(claim, ours)


def compared(claim: Claim, ours: Any) -> Verdict:
    """The verdict on a claim, given our value: a truth value, text, a number or an interval.

    Where the paper prints a formula, a number of ours is the ratio to the formula's value.
    """
    if isinstance(ours, bool):
        return Verdict(claim, _fitted(claim, _result(ours)), "so it is" if ours else "it is not so")
    if not isinstance(ours, int | float | Band):
        same = _text(ours).replace(" ", "") == claim.value.replace(" ", "")
        return Verdict(claim, _fitted(claim, _result(same)), _text(ours))
    printed = 1.0 if claim.number is None else claim.number
    band = ours if isinstance(ours, Band) else Band(ours, ours, ours)
    ratio = band * (1 / printed) if printed else None
    result = _result(
        _inside(claim, band, printed) if band.low < band.high else _close(claim, band.value, printed)
    )
    if (
        result is Result.CONTRADICTED
        and ratio
        and 1 / FACTOR <= ratio.value <= FACTOR
        and claim.tolerance not in EXACT
    ):
        result = Result.WITHIN
    return Verdict(claim, _fitted(claim, result), _text(ours), ratio)


def _result(holds: bool) -> Result:
    return Result.HOLDS if holds else Result.CONTRADICTED


def _inside(claim: Claim, ours: Band, printed: float) -> bool:
    """Whether a printed number lies in an interval of ours; a bound may lie beyond it."""
    above = claim.comparator == "at_least" or ours.low <= printed
    below = claim.comparator == "up_to" or printed <= ours.high
    return above and below


def _close(claim: Claim, ours: float, printed: float) -> bool:
    """Whether a number of ours is as close to the printed one as the claim's tolerance says."""
    if claim.tolerance not in EXACT and (
        (claim.comparator == "up_to" and ours <= printed)
        or (claim.comparator == "at_least" and ours >= printed)
    ):
        return True
    if claim.tolerance == "sign":
        return (ours - 1) * (printed - 1) > 0
    if claim.tolerance in SHARES:
        return isclose(ours, printed, rel_tol=SHARES[claim.tolerance])
    if claim.tolerance == "1.5x":
        return 1 / 1.5 <= ours / printed <= 1.5
    return abs(ours - printed) <= _last_digit(claim.value)


def _last_digit(printed: str) -> float:
    """One unit of the last printed digit after the point; a whole number is exact."""
    _, point, digits = printed.partition(".")
    return 10.0 ** -len(digits) if point else 0.0


def _fitted(claim: Claim, result: Result) -> Result:
    return Result.FITTED if claim.fitted == "fitted" else result


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)


def scoreboard(verdicts: Mapping[str, list[Verdict]]) -> list[tuple[str, ...]]:
    """The number of claims of each paper by result, and of all."""
    rows = [("paper", *map(str, Result), "claims")]
    everything = [each for some in verdicts.values() for each in some]
    for paper, some in [*verdicts.items(), ("all", everything)]:
        counts = [sum(each.result is result for each in some) for result in Result]
        rows.append((paper, *map(str, counts), str(len(some))))
    return rows


UNTESTED = {
    "cited": "are numbers of others",
    "run": "take the paper's own run, of which no record is among the collected tables",
    "prediction": "take twins or a graph that is too large for this machine",
    "nothing": "have nothing to be held against",
}
"""Why claims cannot be tested, by what they would be held against."""


def reasons(verdicts: list[Verdict]) -> list[str]:
    """The number of claims that cannot be tested, by kind of reason."""
    bases = Counter(each.claim.basis for each in verdicts if each.result is Result.UNTESTED)
    parts = [f"{count} {UNTESTED.get(basis, basis)}" for basis, count in bases.most_common()]
    return [f"Of those that cannot be tested here, {'; '.join(parts)}."] if parts else []


def hits_and_widths(verdicts: list[Verdict]) -> list[str]:
    """How many of the held-out claims hold, and how wide our intervals are: a wide interval is hit easily."""
    held_out = [each for each in verdicts if each.claim.fitted == "held out"]
    if not held_out:
        return []
    hold = sum(each.result is Result.HOLDS for each in held_out)
    untested = sum(each.result is Result.UNTESTED for each in held_out)
    ratios = [each.ratio for each in held_out if each.ratio]
    widths = [ratio.high / ratio.low for ratio in ratios if ratio.high > ratio.low > 0]
    text = f"{hold} of {len(held_out)} held-out claims hold, and {untested} cannot be tested here."
    if widths:
        text += (
            f" The median interval is a factor of {median(widths):.2f} wide, the widest {max(widths):.2f}."
        )
    return [text]
