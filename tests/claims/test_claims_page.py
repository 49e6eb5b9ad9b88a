"""The recorded page of claims: every counted result can fail, and pages of the docs have its tables."""

import re
from collections import Counter
from pathlib import Path

from harness.claims import Result, read_claims
from harness.claims.formulas import FORMULAS
from harness.claims.verdicts import compare

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}
PAGE = ROOT / "docs" / "evidence" / "claims.md"
RECORDED = ROOT / "benchmarks" / "results" / "claims.md"
NUMBER = re.compile(r"(-?[\d.,]+)(?: \[(-?[\d.,]+) to (-?[\d.,]+)\])?")


def read_recorded_values() -> dict[str, tuple[str, str]]:
    """Our values of the results on the recorded page and their verdicts, as they are printed there."""
    lines = RECORDED.read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"claim +place ", line)]
    found = {}
    for head in heads:
        start, end = (lines[head].index(f"  {column}") + 2 for column in ("ours", "verdict"))
        for line in lines[head + 1 :]:
            if not line.strip():
                break
            if (claim := line.split()[0]) in CLAIMS:
                found[claim] = tuple(re.split(r" {2,}", line[place:])[0].strip() for place in (start, end))
    return found


def test_a_planted_wrong_value_turns_the_verdict_on_every_counted_result() -> None:
    """The printed number holds, three times it and a third do not; of a statement only one answer holds."""
    recorded, checked = read_recorded_values(), 0
    for name, (text, _) in recorded.items():
        claim = CLAIMS[name]
        if not claim.is_counted or not text:
            continue
        checked += 1
        if text in ("true", "false"):
            assert {compare(claim, value).result for value in (True, False)} == {
                Result.HOLDS,
                Result.CONTRADICTED,
            }
        elif not NUMBER.fullmatch(text):
            assert compare(claim, [text, "1"]).result is Result.CONTRADICTED
        else:
            printed = 1.0 if claim.number is None else claim.number
            right = compare(claim, printed or 0, claim.unit).result
            wrong = [printed * 3, printed / 3] if printed else [1.0, -1.0]
            verdicts = {compare(claim, value, claim.unit).result for value in wrong}
            assert right is Result.HOLDS and verdicts - {Result.HOLDS}, name
            if claim.comparator != "at_least":
                assert Result.HOLDS not in verdicts, name
    assert checked > 70


def test_no_interval_that_nearly_every_number_fits_makes_a_claim_consistent() -> None:
    """An interval of a factor of ten, or with both signs, would contain nearly everything."""
    widths = {}
    for name, (text, verdict) in read_recorded_values().items():
        number = NUMBER.fullmatch(text)
        if number and number[2] and verdict == Result.CONSISTENT:
            low, high = (float(end.replace(",", "")) for end in number.groups()[1:])
            widths[name] = high / low if low > 0 else float("inf")
    assert len(widths) > 3
    assert {name for name, width in widths.items() if width > 10} == set()


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
