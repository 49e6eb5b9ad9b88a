"""The recorded page of claims: every counted result can fail, and what does not hold has a heading and a reason."""

import re
from pathlib import Path

from harness.claims import Result, read_claims
from harness.claims.formula import Value
from harness.claims.verdicts import ClaimHeading, compare

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}
RECORDED = ROOT / "benchmarks" / "results" / "claims.md"
NUMBER = re.compile(r"(-?[\d.,]+)(?: \[(-?[\d.,]+) to (-?[\d.,]+)\])?")


def read_recorded_values() -> dict[str, tuple[str, str]]:
    """Our values of the results on the recorded page and their verdicts, as they are printed there."""
    lines = RECORDED.read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"claim +place ", line)]
    found: dict[str, tuple[str, str]] = {}
    for head in heads:
        start, end = (lines[head].index(f"  {column}") + 2 for column in ("ours", "verdict"))
        for line in lines[head + 1 :]:
            if not line.strip():
                break
            if (claim := line.split()[0]) in CLAIMS:
                ours, verdict = (re.split(r" {2,}", line[place:])[0].strip() for place in (start, end))
                found[claim] = ours, verdict
    return found


def read_recorded_headings() -> dict[ClaimHeading, dict[str, str]]:
    """The claims that the recorded page lists under each heading, with their reasons."""
    lines = RECORDED.read_text().splitlines()
    found: dict[ClaimHeading, dict[str, str]] = {}
    for heading in ClaimHeading:
        start = lines.index(str(heading)) + 1
        rows = lines[start + 1 : lines.index("", start)]
        reason = lines[start].index("  reason") + 2
        found[heading] = {row.split()[0]: row[reason:].strip() for row in rows}
    return found


def test_a_planted_wrong_value_turns_the_verdict_on_every_counted_result() -> None:
    """The printed number holds, three times it and a third do not; of a statement only one answer holds.

    If a unit or a setting is not printed, no single value has a verdict.
    """
    recorded, checked = read_recorded_values(), 0
    for name, (text, _) in recorded.items():
        claim = CLAIMS[name]
        if not claim.is_counted or not text:
            continue
        checked += 1
        if claim.unprinted:
            values: list[Value] = [True, False, "x", claim.number or 1.0, 3 * (claim.number or 1.0)]
            assert {compare(claim, each, claim.unit).result for each in values} == {Result.NOT_COMPARABLE}
        elif text in ("true", "false"):
            assert {compare(claim, value).result for value in (True, False)} == {
                Result.HOLDS,
                Result.CONTRADICTED,
            }
        elif not NUMBER.fullmatch(text):
            assert compare(claim, ["no entry"]).result is Result.CONTRADICTED
            assert compare(claim, [*claim.value.split(";"), "no entry"]).result is Result.IN_PART
        else:
            printed = 1.0 if claim.number is None else claim.number
            right = compare(claim, printed or 0, claim.unit).result
            wrong = [printed * 3, printed / 3] if printed else [1.0, -1.0]
            verdicts = {compare(claim, value, claim.unit).result for value in wrong}
            assert right is Result.HOLDS and verdicts - {Result.HOLDS}, name
            if claim.comparator != "at_least":
                assert Result.HOLDS not in verdicts, name
    assert checked > 70


def test_no_prediction_is_recorded_as_a_contradiction() -> None:
    verdicts = {name: verdict for name, (_, verdict) in read_recorded_values().items()}
    contradicted = [name for name, verdict in verdicts.items() if verdict == Result.CONTRADICTED]
    assert contradicted and not [name for name in contradicted if CLAIMS[name].basis == "prediction"]


def test_failed_claims_have_one_heading_and_a_reason() -> None:
    headings = read_recorded_headings()
    listed = [name for rows in headings.values() for name in rows]
    assert len(listed) == len(set(listed))
    assert all(reason for rows in headings.values() for reason in rows.values())
    fine = {Result.HOLDS, Result.PREDICTED, Result.FITTED, Result.UNTESTED}
    missing = [
        name
        for name, (_, verdict) in read_recorded_values().items()
        if CLAIMS[name].is_counted and not verdict.startswith(tuple(fine)) and name not in listed
    ]
    assert missing == []
    for name in headings[ClaimHeading.PAPER]:
        assert CLAIMS[name].cause == "the paper"
    for name in headings[ClaimHeading.COUNT]:
        assert CLAIMS[name].cause == "our count"
    assert all(CLAIMS[name].basis == "prediction" for name in headings[ClaimHeading.PREDICTION])
    assert all(CLAIMS[name].unprinted for name in headings[ClaimHeading.NOT_COMPARABLE])
