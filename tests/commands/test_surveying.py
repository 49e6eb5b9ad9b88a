"""harness doctor and new: what is missing comes first, measured values have units, commands can be pasted."""

import shlex
from pathlib import Path

from harness.base.formatting import GB
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Command, View
from harness.cli.commands.rendering import render_text
from harness.cli.commands.scaffolding import new_project, new_strategy
from harness.cli.commands.surveying import CalibrationAnswer, LinksAnswer, SurveyAnswer, list_constants
from harness.cli.doctor.survey import SurveyItem
from harness.prediction.calibration.links import LinkMeasurement, make_constant
from harness.spec.machine_card import MeasuredLink

ITEMS = [
    SurveyItem("cores", "2: start up to 2 ranks on them"),
    SurveyItem("modules", "not loaded: `module load nccl`", "CHECK"),
    SurveyItem("torch", "not installed: pip install torch", "MISSING"),
]
LINKS = LinkMeasurement(
    [MeasuredLink(before=1, size=2, gbs=2.0), MeasuredLink(before=2, size=2, gbs=0.25)], 35.0, "Socket"
)


def page(answer: Answer) -> list[str]:
    return render_text(answer.lay_out(View())).splitlines()


def list_commands(answer: Answer) -> list[str]:
    return [block.text for block in answer.lay_out(View()) if isinstance(block, Command)]


def test_missing_items_come_first_and_fail_the_survey() -> None:
    answer = SurveyAnswer(ITEMS)
    lines = page(answer)
    assert lines[0] == "This machine lacks 1 item: torch; check modules"
    assert [line.split()[0] for line in lines[3:]] == ["MISSING", "CHECK", "ok"]
    assert lines[3].endswith("pip install torch")
    assert answer.exit_code == 1


def test_a_machine_that_lacks_nothing_passes() -> None:
    answer = SurveyAnswer(ITEMS[:2])
    assert page(answer)[0] == "This machine has everything that runs need; check modules"
    assert answer.exit_code == 0


def test_links_have_units_and_the_widest_group_is_quoted() -> None:
    lines = page(LinksAnswer("local", 4, LINKS, None))
    assert lines[0] == (
        f"4 ranks on local: each receives {0.25 * GB / 1e6:.0f} MB/s in an all-reduce of 2 ranks, latency 35.0 µs"
    )
    assert lines[3].split() == ["2", "1", f"{2 * GB / 1e9:.2f}", "GB/s"]
    assert any(line.split() == ["network", "Socket"] for line in lines)


def test_constants_are_rows_with_units_and_factors(tmp_path: Path) -> None:
    sections = {
        "memory_gb": 80.0,
        "rates": {"memory_gbs": make_constant(71.14, 1.26), "spmm": {"entry": 0.4904}},
        "links": {"latency_us": make_constant(12.0, 1.5), "measured": [{"before": 1, "size": 2, "gbs": 1.0}]},
    }
    rows = {
        row["constant"]: (row["value"], row["unit"], row.get("within")) for row in list_constants(sections)
    }
    assert rows == {
        "memory_gb": ("80.0", "GB", None),
        "rates.memory_gbs": ("71.1", "GB/s", 1.26),
        "rates.spmm.entry": ("0.490", None, None),
        "links.latency_us": ("12.0", "µs", 1.5),
    }
    answer = CalibrationAnswer(
        "mine", sections, ["copies left out: a reason"], tmp_path / "mine.yaml", tmp_path
    )
    assert page(answer)[0] == "mine is calibrated: 4 constants measured"
    assert "Copies left out: a reason." in page(answer)
    assert answer.to_document() == {**sections, "notes": ["copies left out: a reason"]}


def test_a_project_with_a_space_in_its_name_has_commands_that_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    answer = new_project(folder)
    assert (folder / "datasets/catalog").is_dir()
    first, *others = list_commands(answer)
    assert shlex.split(first) == ["cd", str(folder)]
    assert others[0] == "harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2"


def test_a_new_strategy_names_the_command_that_checks_it(tmp_path: Path) -> None:
    answer = new_strategy("fresh-one", into=tmp_path)
    (command,) = list_commands(answer)
    file, _, cls = answer.strategy.partition(":")
    assert shlex.split(command) == ["harness", "check", answer.strategy, "--quick", "--first"]
    assert f"class {cls}(" in Path(file).read_text()
    assert Path(file) in [each.file for each in answer.files]
    assert page(answer)[0].startswith(f"{answer.folder} has {len(answer.files)} files.")
