"""Verdicts: whether our value agrees with what a paper prints, and if a claim cannot be tested, why.

A value that was counted, computed or measured holds if it is within the claim's tolerance of the printed number, and
may contradict the paper. A prediction may not: it is right within the tolerance, or it is off. Its interval changes
neither. A list is judged entry by entry.

A claim whose unit or setting the paper does not print is never compared with a single number. Where the choices are
few, our value is a range over them, and has a verdict only if all choices have the same one. Otherwise the claim is not
comparable, and our value is not computed.

A claim to which a constant was fitted cannot test it, so it is marked `fitted`.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.base.errors import UserError
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.claims.claims import Cause, Claim, read_claims
from harness.claims.estimates import Choices, Estimate, UntestableClaim, format_number
from harness.claims.evidence import Consulted, Evidence
from harness.claims.formula import Value
from harness.claims.units import find_conversion
from harness.experiment.paper_figures import check_figure_ids
from harness.spec.machine_card import FittedResult

FACTOR = 2.0
"""A value outside its tolerance, but within this factor of the printed one, is `within a factor`."""
RELATIVE_TOLERANCES = {"1%": 0.01, "10%": 0.1}
TOLERANCE_WORDS = {"exact": "the last digit", "1%": "1 %", "10%": "10 %", "1.5x": "1.5"}
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
    IN_PART = "in part"
    WITHIN = "within a factor"
    CONTRADICTED = "contradicted"
    PREDICTED = "predicted"
    OFF = "prediction off"
    NOT_COMPARABLE = "not comparable"
    FITTED = "fitted"
    UNTESTED = "cannot be tested here"


class ClaimHeading(StrEnum):
    """Why a claim does not hold, or is not comparable."""

    PAPER = "the paper disagrees with itself"
    COUNT = "our count differs"
    PREDICTION = "our prediction is off"
    NOT_COMPARABLE = "not comparable: unit or setting not printed"


HEADINGS_BY_CAUSE: dict[Cause, ClaimHeading] = {
    "the paper": ClaimHeading.PAPER,
    "our count": ClaimHeading.COUNT,
}


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
    agreeing: tuple[int, int] | None = None
    """How many entries of a list agree, and of how many."""

    @property
    def uncounted(self) -> str:
        """Why the scoreboard does not count the claim; empty if it does."""
        if self.claim.role != "result":
            return self.claim.role
        return "duplicate" if self.claim.duplicate_of else self.claim.uncounted

    @property
    def error(self) -> str:
        """The class of the error of a predicted number; empty for other claims, ranges among them."""
        if self.source != "predicted" or self.ratio is None or self.result is Result.NOT_COMPARABLE:
            return ""
        return "" if self.ratio.is_range else classify_error(self.ratio.value)

    @property
    def heading(self) -> ClaimHeading | None:
        """Under which heading the claim is listed; None if it holds, or cannot be tested."""
        if self.result is Result.NOT_COMPARABLE:
            return ClaimHeading.NOT_COMPARABLE
        if self.result not in (Result.IN_PART, Result.WITHIN, Result.CONTRADICTED, Result.OFF):
            return None
        if self.source == "predicted":
            return ClaimHeading.PREDICTION
        return HEADINGS_BY_CAUSE.get(self.claim.cause, ClaimHeading.COUNT)

    @property
    def words(self) -> str:
        """The verdict with its numbers, such as "off by 4.5" or "1 of 2 hold"."""
        predicted = self.source == "predicted"
        if self.agreeing and self.result is Result.IN_PART:
            agreeing, entries = self.agreeing
            return f"{agreeing} of {entries} {'predicted' if predicted else 'hold'}"
        if self.result is Result.PREDICTED and self.ratio:
            return f"predicted within {TOLERANCE_WORDS[self.claim.tolerance]}"
        if self.result is Result.OFF:
            return describe_error(self.ratio) if self.ratio else "predicted otherwise"
        return str(self.result)

    def as_row(self, paper: str) -> dict[str, Any]:
        """Return the verdict as a row of the table `claims`."""
        columns = ("id", "role", "figure", "place", "what", "config", "printed", "basis", "duplicate_of")
        ratio, formula = self.ratio, self.claim.formula
        return {
            "paper": paper,
            **{name: getattr(self.claim, name) for name in columns},
            "source": self.source,
            "uncounted": self.uncounted,
            "ours": self.ours,
            "formula": str(formula) if formula else "",
            "ratio": None if ratio is None or ratio.is_range else ratio.value,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "error": self.error,
            "verdict": str(self.result),
            "words": self.words,
            "heading": self.heading or "",
            "unprinted": self.claim.unprinted,
            "reason": self.reason or self.claim.note,
        }


def compute_error(ratio: float) -> float:
    """Return the factor between our value and the printed one, at least 1, by their ratio."""
    return max(ratio, 1 / ratio) if ratio > 0 else inf


def describe_error(ratio: Estimate) -> str:
    """Return the factor by which a prediction is off; for a range, that of its closest end."""
    error = min(compute_error(ratio.least), compute_error(ratio.largest))
    return "off in sign" if error == inf else f"off by {format_number(error)}"


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
    on_step: OnStep = ignore_step,
) -> dict[str, list[Verdict]]:
    """Judge the claims that pass a filter, and return the verdicts by paper."""
    papers = (claim_filter or ClaimFilter()).read(root)
    verdicts: dict[str, list[Verdict]] = {name: [] for name in papers}
    pairs = [(name, claim) for name, claims in papers.items() for claim in claims]
    for name, claim in report_steps(pairs, lambda pair: f"judging {pair[1].id}", on_step):
        verdicts[name].append(judge(claim, evidence))
    return verdicts


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """Compute our value of what a claim prints, and compare the two."""
    formula, source = claim.formula, SOURCES_BY_BASIS.get(claim.basis, "none")
    untested = Verdict(claim, Result.UNTESTED, reason=claim.note, source=source)
    if formula is None:
        return untested
    if not claim.is_comparable:
        return untested._replace(result=Result.NOT_COMPARABLE)
    evidence.consulted.clear()
    try:
        ours = formula(evidence)
    except UntestableClaim as reason:
        return untested._replace(reason=str(reason))
    except UserError as refusal:
        raise UserError(f"{claim.id}: the formula {formula} fails. {refusal}") from refusal
    verdict = compare(claim, ours, formula.unit, find_source(claim, evidence.consulted))
    if card := find_fitted_card(claim, evidence):
        if claim.fitted == "held out":
            raise UserError(f"{claim.id} is held out, but a constant of the card {card} was fitted to it.")
        verdict = verdict._replace(
            result=Result.FITTED, reason=f"a constant of the card {card} was fitted to it"
        )
    if claim.uncounted == "another quantity":
        verdict = verdict._replace(result=Result.UNTESTED, reason=f"another quantity: {claim.note}")
    return verdict


def find_fitted_card(claim: Claim, evidence: Evidence) -> str:
    """Return a card of which a constant was fitted to this claim's number or runs; empty if there is none.

    A claim on the runs of one system in a figure is known to a fit on these runs. A comparison with another system is
    not: the fit has seen one side of it.
    """
    if claim.role != "result":
        return ""
    names = {FittedResult(claim=claim.id)}
    if claim.basis == "prediction" and claim.figure and claim.system and not claim.baseline:
        names.add(FittedResult(figure=claim.figure, system=claim.system))
    machines = (card for card, results in evidence.fitted_results.items() if names.intersection(results))
    graphs = [card for card, claims in evidence.fitted_graphs.items() if claim.id in claims]
    graphs.sort(key=lambda card: card not in claim.dataset.split(";"))
    return next(chain(machines, graphs), "")


def find_source(claim: Claim, consulted: set[Consulted]) -> Source:
    """Return how our value came about, from the basis of its claim and what its formula consulted."""
    if claim.basis == "prediction" and consulted == {"record"}:
        return "measured"
    if claim.basis == "formula" and "replay" in consulted:
        return "counted"
    if claim.basis == "run" and "twin" in consulted:
        return "computed"
    return SOURCES_BY_BASIS.get(claim.basis, "none")


def compare(claim: Claim, ours: Value, unit: str = "", source: Source = "computed") -> Verdict:
    """Compare a claim with our value, which is in `unit`.

    Where the paper prints a formula, our number is the ratio to the formula's value.
    """
    if isinstance(ours, bool):
        ours = Choices((ours,))
    if isinstance(ours, Choices):
        return _compare_choices(claim, ours, source)
    if isinstance(ours, int | float | Estimate):
        return _compare_number(claim, ours, unit, source)
    return _compare_list(claim, ours, source)


def _compare_choices(claim: Claim, ours: Choices, source: Source) -> Verdict:
    verdict = Verdict(claim, Result.NOT_COMPARABLE, str(ours), source=source)
    _check_range(claim, len(ours.values) > 1)
    if len(set(ours.values)) > 1 or (claim.unprinted and len(ours.values) == 1):
        return verdict
    return verdict._replace(result=_choose_result(ours.values[0], source))


def _compare_list(claim: Claim, ours: str | Sequence[object], source: Source) -> Verdict:
    """Compare lists entry by entry. Our list may have a truth value for each of several statements."""
    is_list = isinstance(ours, list)
    found = list(ours) if is_list else [ours]
    text = ";".join(_format_entry(entry) for entry in found)
    if found and all(isinstance(entry, bool) for entry in found):
        agreeing, entries = sum(map(bool, found)), len(found)
    else:
        mine = {_format_entry(entry).replace(" ", "") for entry in found}
        printed = set(claim.value.replace(" ", "").split(";")) if is_list else {claim.value.replace(" ", "")}
        agreeing, entries = len(mine & printed), len(mine | printed)
    verdict = Verdict(claim, Result.IN_PART, text or "none", source=source, agreeing=(agreeing, entries))
    if claim.unprinted:
        return verdict._replace(result=Result.NOT_COMPARABLE)
    if agreeing in (0, entries):
        return verdict._replace(result=_choose_result(agreeing == entries, source))
    return verdict


def _compare_number(claim: Claim, ours: int | float | Estimate, unit: str, source: Source) -> Verdict:
    conversion = find_conversion(unit, claim.unit, claim.id)
    if conversion != 1:
        ours = ours * conversion
    printed = 1.0 if claim.number is None else claim.number
    estimate = ours if isinstance(ours, Estimate) else Estimate(ours, ours, ours)
    ratio = estimate * (1 / printed) if printed else None
    verdict = Verdict(claim, Result.NOT_COMPARABLE, _format_entry(ours), ratio, source=source)
    _check_range(claim, estimate.is_range)
    if claim.unprinted and not estimate.is_range:
        return verdict
    close = [_is_close(claim, end, printed) for end in (estimate.least, estimate.largest)]
    if estimate.is_range and not all(close) and (any(close) or estimate.least < printed < estimate.largest):
        return verdict
    result = _choose_result(all(close), source)
    is_near = printed and 1 / FACTOR <= estimate.least / printed <= estimate.largest / printed <= FACTOR
    if result is Result.CONTRADICTED and is_near and claim.tolerance not in STRICT_TOLERANCES:
        result = Result.WITHIN
    return verdict._replace(result=result)


def _check_range(claim: Claim, is_range: bool) -> None:
    if is_range and not claim.unprinted:
        raise UserError(
            f"{claim.id}: our value is a range, so the claim must say what the paper does not print"
        )


def _choose_result(agrees: bool, source: Source) -> Result:
    """Return the verdict on a value that agrees or does not. A prediction never contradicts a paper."""
    if source == "predicted":
        return Result.PREDICTED if agrees else Result.OFF
    return Result.HOLDS if agrees else Result.CONTRADICTED


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


def _format_entry(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
