"""harness check: a verdict that can be quoted, a table of checks, and what is broken."""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import nan
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.cli.commands.checking import CheckAnswer, CheckRequest, check
from harness.cli.commands.output import View
from harness.cli.commands.rendering import render_text
from harness.conformance import Finding
from harness.conformance.mismatch import Mismatch
from harness.registry import hash_strategy_code

LOSSES, WORDS = "losses equal serial", "elements equal the formula"
WRONG = [Mismatch(rank, "epoch 0", "the loss", 15, 25, ("formula", "run"), "2 x 12") for rank in range(3)]
BROKEN = Finding(
    LOSSES, "p=2: usual", False, "all of it", "oned.py:9: the loss", "cagnet-1d on p=2", WRONG, 0.7, 1e-12
)
HELD = (
    Finding(LOSSES, "p=1: usual", True, "2e-16", worst=2e-16, allowed=1e-12),
    Finding(WORDS, "p=1: usual", True, "120"),
    Finding(LOSSES, "p=3: usual", True, "3e-15", worst=3e-15, allowed=1e-12),
    Finding(WORDS, "p=3: usual", True, "7,000"),
)


def answer(findings: Sequence[Finding], **options: Any) -> CheckAnswer:
    request = CheckRequest("cagnet-1d", **options)
    return CheckAnswer("cagnet-1d", request.choose_extent(), findings, 46.2, request)


def page(findings: Sequence[Finding], view: View = View(), **options: Any) -> list[str]:  # noqa: B008
    return render_text(answer(findings, **options).lay_out(view), view).splitlines()


def test_pass_prints_a_line_and_a_table_of_checks_with_the_worst_difference() -> None:
    lines = page(HELD)
    assert lines[0].startswith("PASS cagnet-1d: 4 checks")
    rows = [line.split() for line in lines]
    assert [*LOSSES.split(), "2", "3e-15", "1e-12"] in rows and [*WORDS.split(), "2"] in rows
    assert "p=1" not in "\n".join(lines)
    assert answer(HELD).exit_code == 0


def test_a_broken_check_comes_first_with_both_values_and_where_to_look() -> None:
    lines = page([*HELD, BROKEN])
    assert lines[0].startswith("FAIL cagnet-1d: 1 of 5 checks") and repr(LOSSES) in lines[0]
    text = " ".join(" ".join(lines).split())
    for fact in ("p=2: usual", "formula 15", "run 25", "2 x 12", "rank 0, epoch 0, the loss", "oned.py:9"):
        assert fact in text
    (row,) = (line.split()[3:] for line in lines if line.startswith(LOSSES))
    assert row == ["FAIL", "2", "of", "3", "7e-01", "1e-12"]
    assert answer([*HELD, BROKEN]).exit_code == 1


def test_verbose_shows_every_case_and_check() -> None:
    lines = page(HELD, View(verbose=True))
    assert sum("p=3: usual" in line for line in lines) == 1
    assert sum(line.endswith("7,000") for line in lines) == 1


def test_a_difference_that_is_not_a_number_is_the_worst_and_null_in_json() -> None:
    broken = Finding(LOSSES, "p=4: usual", False, "nan", worst=nan, allowed=1e-12)
    assert any("nan" in line for line in page([*HELD, broken]) if line.startswith(LOSSES))
    assert answer([broken]).to_document()["findings"][0]["worst"] is None


def test_documents_and_frames_begin_with_broken_checks() -> None:
    findings = answer([HELD[0], BROKEN, HELD[1]]).to_document()["findings"]
    assert [finding["holds"] for finding in findings] == [False, True, True]
    assert findings[0]["wrong"][0]["sides"] == ("formula", "run")
    assert list(answer([HELD[0], BROKEN, HELD[1]]).to_frame()["holds"]) == [False, True, True]


def test_a_quick_check_names_what_larger_checks_try() -> None:
    quick = page(HELD, quick=True)
    assert quick[-2:] == ["  harness check cagnet-1d", "  harness check cagnet-1d --full"]
    assert page(HELD)[-1] == "  harness check cagnet-1d --full"
    assert not any("harness check" in line for line in page(HELD, full=True))


@pytest.mark.parametrize(
    ("options", "extent"),
    [
        ({}, "usual"),
        ({"quick": True}, "quick"),
        ({"extent": "full"}, "full"),
        ({"full": True, "extent": "full"}, "full"),
    ],
)
def test_shorthands_and_extent_mean_the_same(options: dict[str, Any], extent: str) -> None:
    assert CheckRequest("serial", **options).choose_extent() == extent


def test_first_stops_after_the_case_that_breaks_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Finding(WORDS, "p=6: usual", True, "1")

    def check_checks(*_: Any, only: str | None) -> Iterator[Finding]:
        yield from (HELD[0], BROKEN, Finding(WORDS, BROKEN.case, True, "1"), later)

    monkeypatch.setattr("harness.conformance.check", check_checks)
    assert [finding.case for finding in check("cagnet-1d", first=True).findings] == ["p=1: usual"] + [
        BROKEN.case
    ] * 2
    assert check("cagnet-1d").findings[-1] is later


# Certificates.


MINE = "from harness.strategies.serial import Serial\n\nclass Mine(Serial):\n    pass\n\n"


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit whose checks all pass."""
    monkeypatch.setattr("harness.conformance.check", lambda *_, **__: iter(HELD))


@pytest.mark.usefixtures("holding")
@pytest.mark.parametrize("extent", ["quick", "usual", "full"])
def test_a_certificate_says_which_code_held_which_checks(extent: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "certificate.json"
    answered = check("cagnet-1d", extent=extent, certificate=path)
    document = json.loads(path.read_text())
    told = {key: value for key, value in document.items() if key != "digest"}
    assert told == {
        "schema": 1,
        "strategy": "cagnet-1d",
        "package": "parallel-gnn-harness",
        "package_version": __version__,
        "promise": "exact",
        "strategy_code": hash_strategy_code("cagnet-1d"),
        "harness": __version__,
        "extent": extent,
        "checks": 4,
        "cases": {LOSSES: 2, WORDS: 2},
    }
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
    assert document["digest"] == sha256(canonical.encode()).hexdigest()
    assert answered.to_document()["certificate"] == str(path)


def test_a_broken_check_gives_no_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.conformance.check", lambda *_, **__: iter([*HELD, BROKEN]))
    answered = check("cagnet-1d", full=True, certificate=tmp_path / "certificate.json")
    assert not (tmp_path / "certificate.json").exists()
    assert answered.exit_code == 1 and answered.to_document()["certificate"] is None


def test_code_that_changed_during_the_check_gives_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{MINE}before = 1")

    def check_checks(*_: Any, **__: Any) -> Iterator[Finding]:
        path.write_text(f"{MINE}after = 1")
        yield from HELD

    monkeypatch.setattr("harness.conformance.check", check_checks)
    answered = check(f"{path}:Mine", full=True, certificate=tmp_path / "certificate.json")
    assert not (tmp_path / "certificate.json").exists()
    assert "changed during the check" in answered.uncertified
    assert check(f"{path}:Mine", full=True, certificate=tmp_path / "certificate.json").uncertified == ""
