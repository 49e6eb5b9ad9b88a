"""The recorded page of claims: every counted result can fail, and pages of the docs have its tables."""

import re
from collections import Counter
from pathlib import Path

from harness.claims import Result, read_claims
from harness.claims.formula import Value
from harness.claims.formulas import FORMULAS
from harness.claims.verdicts import ClaimHeading, compare, compute_error

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}
PAGE = ROOT / "docs" / "evidence" / "claims.md"
CONTRADICTIONS = ROOT / "docs" / "evidence" / "contradictions.md"
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


def test_what_does_not_hold_is_under_one_heading_with_a_reason() -> None:
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


def test_contradictions_page_lists_the_recorded_claims_under_each_heading() -> None:
    text = CONTRADICTIONS.read_text()
    for heading, recorded in read_recorded_headings().items():
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, flags=re.IGNORECASE | re.M | re.S)
        rows = re.findall(r"^\| ((?:[A-Z0-9]+-\d+(?:, )?)+) \|", section, flags=re.M)
        listed = [name for row in rows for name in row.split(", ")]
        assert sorted(listed) == sorted(recorded), heading
        (count,) = re.findall(r"^(\d+) claims?\b", section.strip(), flags=re.M)
        assert int(count) == len(recorded), heading


def test_pages_have_the_recorded_scoreboard() -> None:
    """docs/evidence/claims.md has both tables of the recorded page; so has any page that has their headings."""
    tables = []
    for head in ("source", "prediction"):
        lines = RECORDED.read_text().splitlines()
        start = next(number for number, line in enumerate(lines) if re.match(rf"{head} +\w", line))
        end = lines.index("", start)
        cells = [re.split(r" {2,}", line.strip()) for line in lines[start:end]]
        tables.append([f"| {' | '.join(row)} |" for row in cells])
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        for heading, *rows in tables:
            if heading in text or page == PAGE:
                assert "\n".join(rows) in text, f"{page}: the table should be\n" + "\n".join([heading, *rows])


def test_page_has_the_errors_of_predictions_by_paper() -> None:
    papers = {claim.id: paper for paper, claims in read_claims(ROOT).items() for claim in claims}
    counts: dict[str, Counter[str]] = {"all": Counter()}
    for name, (text, verdict) in read_recorded_values().items():
        claim, number = CLAIMS[name], NUMBER.fullmatch(text)
        is_tested = verdict.startswith(("predicted", "off ")) and claim.is_counted and not claim.choices
        if not (is_tested and number and claim.number and claim.basis == "prediction"):
            continue
        ours, low, high = (float((end or number[1]).replace(",", "")) for end in number.groups())
        found = Counter(["numbers"])
        found["within 1.5"] += compute_error(ours / claim.number) <= 1.5
        found["with an interval"] += low < high
        found["contain"] += low < high and low <= claim.number <= high
        for row in (papers[name], "all"):
            counts.setdefault(row, Counter()).update(found)
    columns = ("numbers", "within 1.5", "with an interval", "contain")
    for paper, count in counts.items():
        label = {"bulk-sampling": "bulk sampling", "scalegnn": "ScaleGNN"}.get(paper, paper)
        cells = " | ".join(str(count[column]) for column in columns)
        assert re.search(rf"^\| {label} \| {re.escape(cells)} \|$", PAGE.read_text(), re.I | re.M), (
            label,
            cells,
        )


def test_page_has_the_recorded_held_out_results() -> None:
    (sentence,) = re.findall(r"^Of 60 held-out results, .*$", RECORDED.read_text(), flags=re.M)
    assert sentence in PAGE.read_text()


def test_page_has_the_numbers_of_claims_by_role_and_of_those_that_are_not_counted() -> None:
    roles = Counter(claim.role for claim in CLAIMS.values())
    results = [claim for claim in CLAIMS.values() if claim.role == "result"]
    reasons = Counter("duplicate" if claim.duplicate_of else claim.uncounted for claim in results)
    text = PAGE.read_text()
    rows = dict(re.findall(r"^\| ([a-z ]+) \| [^|]* \| (\d+(?:, and \d+ .*)?) \|$", text, flags=re.MULTILINE))
    counted = reasons.pop("")
    left_out = reasons.total()
    assert rows.pop("result") == f"{counted}, and {left_out} that are not counted"
    assert roles.pop("result") == counted + left_out
    assert rows == {name: str(count) for name, count in (roles + reasons).items()}
    assert f"print {len(CLAIMS)} numbers" in text
    assert "For most of them, a function" in " ".join(text.split()) and len(FORMULAS) > len(CLAIMS) / 2
