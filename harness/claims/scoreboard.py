"""The scoreboard: what became of the results of the papers, by how our values come about.

Settings, facts, duplicates, and comparisons that cannot fail are not counted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import get_args

from harness.base.formatting import format_count
from harness.claims.verdicts import ERROR_CLASSES, ClaimHeading, Result, Source, Verdict, compute_error

Rows = list[tuple[str, ...]]
"""Rows of a table; the first has the headings."""

UNTESTED = {
    "cited": "quote other work",
    "run": "need the paper's own run, of which no record is among the collected tables",
    "prediction": "need twins or a graph that is too large for this machine",
    "formula": "cannot be computed on this machine",
    "nothing": "have nothing to be compared with",
}
"""Why results cannot be tested, by their basis."""


def select_counted(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that the scoreboard counts."""
    return [each for each in verdicts if not each.uncounted]


def make_scoreboard(verdicts: Iterable[Verdict]) -> Rows:
    """Count the results by source and verdict."""
    counted = select_counted(verdicts)
    groups = {source: [each for each in counted if each.source == source] for source in get_args(Source)}
    rows: Rows = [("source", *map(str, Result), "results")]
    for name, group in [*((name, group) for name, group in groups.items() if group), ("all", counted)]:
        counts = [sum(each.result is result for each in group) for result in Result]
        rows.append((name, *map(str, counts), str(len(group))))
    return rows


def make_error_table(verdicts: Iterable[Verdict]) -> Rows:
    """Count the predicted numbers by their error, with the widths of their intervals. Ranges have no error."""
    predicted = [each for each in select_counted(verdicts) if each.error]
    rows: Rows = [("prediction", "numbers", *ERROR_CLASSES, "median error", "median width")]
    fitted = [each for each in predicted if each.result is Result.FITTED]
    tested = [each for each in predicted if each.result is not Result.FITTED]
    held_out = [each for each in tested if each.claim.fitted == "held out"]
    for name, group in [("tested", tested), ("of these held out", held_out), ("fitted", fitted)]:
        if group:
            counts = Counter(each.error for each in group)
            factors = [compute_error(each.ratio.value) for each in group if each.ratio]
            widths = _list_widths(group)
            rows.append(
                (
                    name,
                    str(len(group)),
                    *(str(counts[error]) for error in ERROR_CLASSES),
                    f"{median(factors):.2f}",
                    f"{median(widths):.2f}" if widths else "",
                )
            )
    return rows if len(rows) > 1 else []


def _list_widths(verdicts: Iterable[Verdict]) -> list[float]:
    """List the widths of the intervals of our values, as factors."""
    ratios = [each.ratio for each in verdicts if each.ratio]
    return [ratio.high / ratio.low for ratio in ratios if ratio.high > ratio.low > 0]


def group_by_heading(verdicts: Iterable[Verdict]) -> dict[ClaimHeading, list[Verdict]]:
    """Group what does not hold or is not comparable by the reason, without results that are not counted."""
    every = list(verdicts)
    return {
        heading: [
            each
            for each in every
            if each.heading is heading and not (each.claim.role == "result" and each.uncounted)
        ]
        for heading in ClaimHeading
    }


def describe_uncounted(verdicts: Iterable[Verdict]) -> list[str]:
    """Describe in a sentence why results are not counted; empty if all are counted."""
    reasons = Counter(each.uncounted for each in verdicts if each.claim.role == "result" and each.uncounted)
    found = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return [f"{format_count(reasons.total(), 'result')} not counted, by reason: {found}."] if found else []


def describe_untested(verdicts: Iterable[Verdict]) -> list[str]:
    """Describe in a sentence why results cannot be tested; empty if all can."""
    untested = (each for each in select_counted(verdicts) if each.result is Result.UNTESTED)
    bases = Counter(each.claim.basis for each in untested)
    parts = [f"{count} {UNTESTED[basis]}" for basis, count in bases.most_common()]
    return [f"Of the results that cannot be tested here, {'; '.join(parts)}."] if parts else []


def describe_held_out(verdicts: Iterable[Verdict]) -> list[str]:
    """Count the verdicts on held-out results in a sentence; empty if no result is held out."""
    held_out = [each for each in select_counted(verdicts) if each.claim.fitted == "held out"]
    return [f"Of {len(held_out)} held-out results, {describe_results(held_out)}."] if held_out else []


def describe_results(verdicts: Sequence[Verdict]) -> str:
    """Return the number of claims with each result."""
    counts = Counter(each.result for each in verdicts)
    words = {Result.HOLDS: "hold", Result.OFF: "predictions off"}
    return ", ".join(
        f"{counts[result]} {words.get(result, result) if counts[result] > 1 else result}"
        for result in Result
        if counts[result]
    )


def describe_other_claims(verdicts: Iterable[Verdict]) -> list[str]:
    """Count the settings and facts in a sentence; empty without any."""
    roles = Counter(each.claim.role for each in verdicts)
    found = [format_count(roles[role], role) for role in ("setting", "fact") if roles[role]]
    return [f"{' and '.join(found)} not counted (--all)."] if found else []
