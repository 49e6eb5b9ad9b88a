"""Verdicts: whether our value agrees with what a paper prints, and if a claim cannot be tested, why.

The number that is compared is the point, whether it has an interval or not: it holds if it is within the claim's
tolerance of the printed number. If only the interval of a prediction contains the printed number, the two are
consistent, unless the interval is so wide that it would contain nearly every number. A claim to which a constant was
fitted cannot test it, so it is marked `fitted`.
"""

from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.claims.claims import Claim, read_claims
from harness.claims.estimates import Estimate, UntestableClaim
from harness.claims.evidence import Consulted, Evidence
from harness.claims.formula import Value
from harness.claims.formulas import FORMULAS
from harness.claims.printed_units import find_conversion
from harness.errors import UserError
from harness.experiment.paper_figures import check_figure_ids
from harness.progress import OnStep, ignore_step, report_steps

FACTOR = 2.0
"""A value outside its tolerance, but within this factor of the printed one, is `within a factor`."""
WIDEST = 10.0
"""The largest ratio of the ends of an interval that can make a claim `consistent`."""
RELATIVE_TOLERANCES = {"1%": 0.01, "10%": 0.1}
STRICT_TOLERANCES = ("exact", "1%")
"""Tolerances of claims for which being within the factor does not count."""
ERROR_FACTORS = (1.25, 1.5, 2.0)
BEYOND = f"beyond {ERROR_FACTORS[-1]:g}"
ERROR_CLASSES = (*(f"within {factor:g}" for factor in ERROR_FACTORS), BEYOND)
"""The classes of the errors of predicted numbers: the factor between our value and the printed one."""

Source = Literal["counted", "computed", "measured", "predicted", "none"]
"""How our value comes about: counted in a replay, computed from sizes, printed numbers or a twin, measured in a run,
predicted from a machine card; or there is nothing to compare with."""
SOURCES_BY_BASIS: dict[str, Source] = {"formula": "computed", "prediction": "predicted", "run": "measured"}


class Result(StrEnum):
    """How our value compares with the printed one."""

    HOLDS = "holds"
    CONSISTENT = "consistent"
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
    source: Source = "none"

    @property
    def uncounted(self) -> str:
        """Why the scoreboard does not count the claim; empty if it does."""
        if self.claim.role != "result":
            return self.claim.role
        return "duplicate" if self.claim.duplicate_of else self.claim.uncounted

    @property
    def error(self) -> str:
        """The class of the error of a predicted number; empty for other claims."""
        if self.source != "predicted" or self.ratio is None:
            return ""
        return classify_error(self.ratio.value)

    def as_row(self, paper: str) -> dict[str, Any]:
        """Return the verdict as a row of the table `claims`."""
        columns = ("id", "role", "figure", "place", "what", "config", "printed", "basis", "duplicate_of")
        ratio, formula = self.ratio, FORMULAS.get(self.claim.id)
        return {
            "paper": paper,
            **{name: getattr(self.claim, name) for name in columns},
            "source": self.source,
            "uncounted": self.uncounted,
            "ours": self.ours,
            "formula": str(formula) if formula else "",
            "ratio": ratio and ratio.value,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "error": self.error,
            "verdict": str(self.result),
            "reason": self.reason or self.claim.note,
        }


def compute_error(ratio: float) -> float:
    """Return the factor between our value and the printed one, at least 1, by their ratio."""
    return max(ratio, 1 / ratio) if ratio > 0 else inf


def classify_error(ratio: float) -> str:
    """Return the smallest class that contains the ratio of our value to the printed one."""
    error = compute_error(ratio)
    classes = zip(ERROR_FACTORS, ERROR_CLASSES, strict=False)
    return next((name for factor, name in classes if error <= factor), BEYOND)


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
    formula, source = FORMULAS.get(claim.id), SOURCES_BY_BASIS.get(claim.basis, "none")
    untested = Verdict(claim, Result.UNTESTED, reason=claim.note, source=source)
    if formula is None:
        return untested
    if quick and claim.basis == "prediction":
        return untested._replace(reason="predictions were left out (--quick)")
    evidence.consulted.clear()
    try:
        ours = formula(evidence)
    except UntestableClaim as reason:
        return untested._replace(reason=str(reason))
    except UserError as refusal:
        raise UserError(f"{claim.id}: the formula {formula} fails. {refusal}") from refusal
    verdict = compare(claim, ours, formula.unit)._replace(source=find_source(claim, evidence.consulted))
    if card := evidence.find_fitted_card(claim):
        if claim.fitted == "held out":
            raise UserError(f"{claim.id} is held out, but a constant of the card {card} was fitted to it.")
        verdict = verdict._replace(
            result=Result.FITTED, reason=f"a constant of the card {card} was fitted to it"
        )
    if claim.uncounted == "another quantity":
        verdict = verdict._replace(result=Result.UNTESTED, reason=f"another quantity: {claim.note}")
    return verdict


def find_source(claim: Claim, consulted: set[Consulted]) -> Source:
    """Return how our value came about, from the basis of its claim and what its formula consulted."""
    if claim.basis == "prediction" and consulted == {"record"}:
        return "measured"
    if claim.basis == "formula" and "replay" in consulted:
        return "counted"
    if claim.basis == "run" and "twin" in consulted:
        return "computed"
    return SOURCES_BY_BASIS.get(claim.basis, "none")


def compare(claim: Claim, ours: Value, unit: str = "") -> Verdict:
    """Compare a claim with our value, which is in `unit`.

    Where the paper prints a formula, our number is the ratio to the formula's value.
    """
    if isinstance(ours, bool):
        return Verdict(claim, _judge_statement(ours), "true" if ours else "false")
    if not isinstance(ours, int | float | Estimate):
        is_same = _format_value(ours).replace(" ", "") == claim.value.replace(" ", "")
        return Verdict(claim, _judge_statement(is_same), _format_value(ours) or "none")
    conversion = find_conversion(unit, claim.unit, claim.id)
    if conversion != 1:
        ours = ours * conversion
    printed = 1.0 if claim.number is None else claim.number
    estimate = ours if isinstance(ours, Estimate) else Estimate(ours, ours, ours)
    ratio = estimate * (1 / printed) if printed else None
    return Verdict(claim, _judge_number(claim, estimate, printed), _format_value(ours), ratio)


def _judge_statement(holds: bool) -> Result:
    return Result.HOLDS if holds else Result.CONTRADICTED


def _judge_number(claim: Claim, ours: Estimate, printed: float) -> Result:
    if _is_close(claim, ours.value, printed):
        return Result.HOLDS
    if 0 < ours.low < ours.high <= WIDEST * ours.low and _is_inside(claim, ours, printed):
        return Result.CONSISTENT
    is_near = printed and 1 / FACTOR <= ours.value / printed <= FACTOR
    return Result.WITHIN if is_near and claim.tolerance not in STRICT_TOLERANCES else Result.CONTRADICTED


def _is_inside(claim: Claim, ours: Estimate, printed: float) -> bool:
    """Return whether the interval contains the printed number. A bound may lie on its open side."""
    above_low = claim.comparator == "at_least" or ours.low <= printed
    below_high = claim.comparator == "below" or printed <= ours.high
    return above_low and below_high


def _is_close(claim: Claim, ours: float, printed: float) -> bool:
    """Return whether our number is within the claim's tolerance of the printed one.

    A share of the tolerance is a share of the printed number. A bound holds on its open side too, unless it is strict.
    """
    if claim.tolerance not in STRICT_TOLERANCES and (
        (claim.comparator == "below" and ours <= printed)
        or (claim.comparator == "at_least" and ours >= printed)
    ):
        return True
    if claim.tolerance in RELATIVE_TOLERANCES:
        return abs(ours - printed) <= RELATIVE_TOLERANCES[claim.tolerance] * abs(printed)
    if claim.tolerance == "1.5x":
        return ours == printed if not printed else 1 / 1.5 <= ours / printed <= 1.5
    return abs(ours - printed) <= _last_digit(claim.value)


def _last_digit(printed: str) -> float:
    """Return one unit of the last printed decimal; 0 for a whole number, which is exact."""
    _, point, digits = printed.partition(".")
    return 10.0 ** -len(digits) if point else 0.0


def _format_value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)
