"""Verdicts: whether our value agrees with what a paper prints, and if a claim cannot be tested, why.

A number without an interval is compared within the claim's tolerance. An estimate has an interval, which must contain
the printed number. A claim to which a constant was fitted cannot test it, so it is marked `fitted` and gets no verdict.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness.claims.claims import Claim, read_claims
from harness.claims.estimates import Estimate, UntestableClaim
from harness.claims.evidence import Evidence
from harness.claims.formula import Value
from harness.claims.formulas import FORMULAS
from harness.errors import UserError
from harness.experiment.paper_figures import check_figure_ids
from harness.progress import OnStep, ignore_step, report_steps

FACTOR = 2.0
"""A value outside its tolerance, but within this factor of the printed one, is `within a factor`."""
RELATIVE_TOLERANCES = {"1%": 0.01, "10%": 0.1}
STRICT_TOLERANCES = ("exact", "1%")
"""Tolerances of claims for which being within the factor does not count."""


class Result(StrEnum):
    """How our value compares with the printed one."""

    HOLDS = "holds"
    WITHIN = "within a factor"
    CONTRADICTED = "contradicted"
    FITTED = "fitted"
    UNTESTED = "cannot be tested here"


class Verdict(NamedTuple):
    """A claim and the result of its comparison."""

    claim: Claim
    result: Result
    ours: str = ""
    """Our value, with its interval if it has one."""
    ratio: Estimate | None = None
    """Our value over the printed number."""
    reason: str = ""
    """Why the claim cannot be tested."""

    def as_row(self, paper: str) -> dict[str, Any]:
        """Return the verdict as a row of the table `claims`."""
        columns = ("id", "figure", "place", "what", "config", "printed", "basis")
        ratio, formula = self.ratio, FORMULAS.get(self.claim.id)
        return {
            "paper": paper,
            **{name: getattr(self.claim, name) for name in columns},
            "ours": self.ours,
            "formula": str(formula) if formula else "",
            "ratio": ratio and ratio.value,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "verdict": str(self.result),
            "reason": self.reason or self.claim.note,
        }


class ClaimFilter(NamedTuple):
    """Which claims to judge; all of them by default."""

    paper: str | None = None
    figures: tuple[str, ...] = ()
    """The figures and tables that show the claims; empty for all, including claims of the text."""
    held_out: bool = False
    """Whether to judge only claims that were held out from every fit."""

    def read(self, root: Path) -> dict[str, list[Claim]]:
        """Read the claims that pass the filter, by paper. Papers without any are omitted."""
        check_figure_ids(root, self.figures, "--figure")
        passing = {
            name: [claim for claim in claims if self.accepts(claim)]
            for name, claims in read_claims(root, self.paper).items()
        }
        return {name: claims for name, claims in passing.items() if claims}

    def accepts(self, claim: Claim) -> bool:
        """Return whether a claim passes the filter."""
        is_shown = not self.figures or claim.figure in self.figures
        return is_shown and (claim.fitted == "held out" or not self.held_out)


def judge_all(
    root: Path,
    evidence: Evidence,
    claim_filter: ClaimFilter | None = None,
    *,
    quick: bool = False,
    on_step: OnStep = ignore_step,
) -> dict[str, list[Verdict]]:
    """Judge the claims that pass a filter, and return the verdicts by paper. `quick` skips predictions."""
    papers = (claim_filter or ClaimFilter()).read(root)
    verdicts: dict[str, list[Verdict]] = {name: [] for name in papers}
    pairs = [(name, claim) for name, claims in papers.items() for claim in claims]
    for name, claim in report_steps(pairs, lambda pair: f"judging {pair[1].id}", on_step):
        verdicts[name].append(judge(claim, evidence, quick=quick))
    return verdicts


def judge(claim: Claim, evidence: Evidence, *, quick: bool = False) -> Verdict:
    """Compute our value of what a claim prints, and compare the two."""
    formula = FORMULAS.get(claim.id)
    if formula is None:
        return Verdict(claim, Result.UNTESTED, reason=claim.note)
    if quick and claim.basis == "prediction":
        return Verdict(claim, Result.UNTESTED, reason="predictions were left out (--quick)")
    try:
        ours = formula(evidence)
    except UntestableClaim as reason:
        return Verdict(claim, Result.UNTESTED, reason=str(reason))
    except UserError as refusal:
        raise UserError(f"{claim.id}: the formula {formula} fails. {refusal}") from refusal
    return compare(claim, ours)


def compare(claim: Claim, ours: Value) -> Verdict:
    """Compare a claim with our value.

    Where the paper prints a formula, our number is the ratio to the formula's value.
    """
    if isinstance(ours, bool):
        return Verdict(claim, _result_of(claim, ours), "true" if ours else "false")
    if not isinstance(ours, int | float | Estimate):
        is_same = _format_value(ours).replace(" ", "") == claim.value.replace(" ", "")
        return Verdict(claim, _result_of(claim, is_same), _format_value(ours))
    printed = 1.0 if claim.number is None else claim.number
    estimate = ours if isinstance(ours, Estimate) else Estimate(ours, ours, ours)
    ratio = estimate * (1 / printed) if printed else None
    if estimate.low < estimate.high:
        holds = _is_inside(claim, estimate, printed)
    else:
        holds = _is_close(claim, estimate.value, printed)
    return Verdict(claim, _result_of(claim, holds, ratio), _format_value(ours), ratio)


def _result_of(claim: Claim, holds: bool, ratio: Estimate | None = None) -> Result:
    if claim.fitted == "fitted":
        return Result.FITTED
    if holds:
        return Result.HOLDS
    is_near = ratio is not None and 1 / FACTOR <= ratio.value <= FACTOR
    return Result.WITHIN if is_near and claim.tolerance not in STRICT_TOLERANCES else Result.CONTRADICTED


def _is_inside(claim: Claim, ours: Estimate, printed: float) -> bool:
    """Return whether the interval contains the printed number. A bound may lie on its open side."""
    above_low = claim.comparator == "at_least" or ours.low <= printed
    below_high = claim.comparator == "up_to" or printed <= ours.high
    return above_low and below_high


def _is_close(claim: Claim, ours: float, printed: float) -> bool:
    """Return whether our number is within the claim's tolerance of the printed one."""
    if claim.tolerance not in STRICT_TOLERANCES and (
        (claim.comparator == "up_to" and ours <= printed)
        or (claim.comparator == "at_least" and ours >= printed)
    ):
        return True
    if claim.tolerance == "sign":
        return (ours - 1) * (printed - 1) > 0
    if claim.tolerance in RELATIVE_TOLERANCES:
        return isclose(ours, printed, rel_tol=RELATIVE_TOLERANCES[claim.tolerance])
    if claim.tolerance == "1.5x":
        return 1 / 1.5 <= ours / printed <= 1.5
    return abs(ours - printed) <= _last_digit(claim.value)


def _last_digit(printed: str) -> float:
    """Return one unit of the last printed decimal; 0 for a whole number, which is exact."""
    _, point, digits = printed.partition(".")
    return 10.0 ** -len(digits) if point else 0.0


def _format_value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)


def make_scoreboard(verdicts: Mapping[str, list[Verdict]]) -> list[tuple[str, ...]]:
    """Count the claims of each paper, and of all, by result. The first row has the headings."""
    rows = [("paper", *map(str, Result), "claims")]
    everything = [each for of_paper in verdicts.values() for each in of_paper]
    for paper, of_paper in [*verdicts.items(), ("all", everything)]:
        counts = [sum(each.result is result for each in of_paper) for result in Result]
        rows.append((paper, *map(str, counts), str(len(of_paper))))
    return rows


UNTESTED = {
    "cited": "quote other work",
    "run": "need the paper's own run, of which no record is among the collected tables",
    "prediction": "need twins or a graph that is too large for this machine",
    "nothing": "have nothing to be compared with",
}
"""Why claims cannot be tested, by their basis."""


def describe_untested(verdicts: list[Verdict]) -> list[str]:
    """Count the claims that cannot be tested by reason, in a sentence; none if there are no such claims."""
    bases = Counter(each.claim.basis for each in verdicts if each.result is Result.UNTESTED)
    parts = [f"{count} {UNTESTED.get(basis, basis)}" for basis, count in bases.most_common()]
    return [f"Of the claims that cannot be tested here, {'; '.join(parts)}."] if parts else []


def describe_held_out(verdicts: list[Verdict]) -> list[str]:
    """Count the held-out claims that hold, and give the widths of our intervals: wide ones are easy to hit."""
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
