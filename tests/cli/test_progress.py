"""Long work says which step it is at, and how long the rest takes; the answer on standard output is not touched."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.progress import OnStep
from harness.claims import ClaimFilter, Evidence, judge_all
from harness.cli import main
from harness.cli.commands.output import View
from harness.cli.terminal import TerminalReporter
from harness.report.figures.framed_tables import KINDS, FramedTables
from harness.report.page import write_report
from harness.results.collect import collect

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"(\d+) of (\d+)(, about \d+ (?:s|min) left)?: \S.*")


def test_the_time_left_is_that_of_the_steps_that_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 10.0, 14.0, 20.0, 100.0, 1000.0])
    monkeypatch.setattr("harness.cli.terminal.time.monotonic", lambda: next(clock))
    with TerminalReporter(View(), as_json=False) as reporter:
        for done in (0, 1, 2, 3):
            reporter.step(done, 4, f"step {done}")
        for done in (0, 1):
            reporter.step(done, 3, "another part")
    lines = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    said = [(int(line[1]), line[3] and line[3].split()[-3]) for line in lines if line]
    assert said == [(2, "30"), (4, "7"), (1, None), (2, "30")]


def _collect(study: Path, folder: Path, on_step: OnStep) -> int:
    return 2 * len(collect(study / "runs", folder, on_step=on_step).runs)  # each is read, then collected


def _draw(study: Path, _: Path, on_step: OnStep) -> int:
    """The steps of the study's own drawing."""
    for step in json.loads((study / "drawn.json").read_text()):
        on_step(*step)
    return len(KINDS)


def _report(study: Path, folder: Path, on_step: OnStep) -> int:
    write_report(FramedTables(study / "tables"), folder / "report.html", on_step=on_step)
    return (folder / "report.html").read_text().count('"launch":"launch ')


def _judge(study: Path, _: Path, on_step: OnStep) -> int:
    evidence = Evidence(ROOT, study / "tables")
    return len(judge_all(ROOT, evidence, ClaimFilter(figures=("plexus-tab4",)), on_step=on_step)["plexus"])


@pytest.mark.long
@pytest.mark.parametrize("work", [_collect, _draw, _report, _judge])
def test_each_step_is_announced_once_and_in_order(
    work: Callable[[Path, Path, OnStep], int], study: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int, str]] = []
    expected = work(study, tmp_path, lambda done, of, doing: told.append((done, of, doing)))
    assert len(told) == expected > 0
    parts = [number for number, step in enumerate(told) if step[0] == 0]
    for begin, end in zip(parts, [*parts[1:], len(told)], strict=True):
        assert [step[:2] for step in told[begin:end]] == [(done, end - begin) for done in range(end - begin)]
    assert all(doing for *_, doing in told)


@pytest.mark.long
def test_a_verb_prints_its_steps_beside_the_answer(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TerminalReporter, "INTERVAL", 0.0)
    asked = ["collect", "--runs", str(study / "runs"), "--out", str(tmp_path), "--root", str(ROOT), "--json"]
    assert main(asked) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    lines = [LINE.fullmatch(line) for line in said.err.splitlines()]
    assert len(lines) > 10
    assert all(lines)
