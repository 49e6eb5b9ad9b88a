"""collect, compare and claims: the answer first, what changed before what did not, and long tables cut."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli import main
from harness.cli.commands.comparing import CompareAnswer
from harness.cli.commands.output import EVERYTHING, Headline, View
from harness.cli.commands.run_facts import format_grid_of
from harness.registry import load_strategy, registered_strategies
from harness.results.collect import collect
from harness.results.launch_intervals import Interval
from harness.results.statistics import Difference
from harness.spec.spec import canonical_json, format_grid


def difference(
    label: str, low: float, high: float, launches: int = 6, *, has_interval: bool = True
) -> Difference:
    ratio = (low * high) ** 0.5
    interval = Interval(low, high) if has_interval else None
    parts = [("convolve broadcast", 1.0, ratio), ("loss gemm", 0.1, 0.1)]
    counts = launches, launches
    return Difference(label, counts, counts, (1.0, ratio), ratio, interval, parts, (10.0, 10.0), {})


SAME = [difference("a", 0.9, 1.1), difference("b", 0.34, 1.66)]


def test_equal_sides_are_counted_and_get_the_launches_that_narrow_their_interval() -> None:
    text = str(CompareAnswer(SAME))
    assert all(fact in text for fact in ("2 pairs", "2 within noise", "66 %", "--launches 10", "--all"))


def test_enough_launches_or_narrow_intervals_ask_for_no_more() -> None:
    for same in ([difference("a", 0.98, 1.02)] * 2, [difference("a", 0.5, 2.0, 10)] * 2):
        assert "--launches" not in str(CompareAnswer(same))


def test_undecided_pairs_say_what_is_missing() -> None:
    few = difference("few", 1, 9, 1, has_interval=False)
    forked = few._replace(launches=(1, 4), runs=(5, 4))
    text = " ".join(str(CompareAnswer([forked])).split())
    assert all(fact in text for fact in ("4 launches", "5 runs", "1 process", "--launches 10"))
    text = " ".join(str(CompareAnswer([*SAME, few])).split())
    assert all(fact in text for fact in ("3 pairs", "5 launches", "1 launch"))


def test_changed_pairs_come_first_the_largest_change_on_top() -> None:
    slower, faster = difference("mine", 1.1, 1.3), difference("theirs", 0.3, 0.5)
    answer = CompareAnswer([*SAME, slower, faster, difference("few", 1, 9, has_interval=False)])
    _, _, table, *_ = str(answer).split("\n\n")
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["theirs", "faster"], ["mine", "slower"]]
    assert answer.to_frame().verdict.tolist() == ["within noise"] * 2 + ["slower", "faster", "undecided"]


def test_details_are_printed_only_where_something_differs() -> None:
    same = difference("same", 0.9, 1.1)._replace(parts=[("loss gemm", 1.0, 1.0)])
    answer = CompareAnswer([same, difference("mine", 1.1, 1.3)])
    headings = [block.text for block in answer.lay_out(EVERYTHING) if isinstance(block, Headline)]
    assert headings[1:] == ["mine"]


@pytest.mark.parametrize(("has_interval", "verdict"), [(True, "slower"), (False, "undecided")])
def test_single_pair_says_how_many_times_as_long_it_takes(has_interval: bool, verdict: str) -> None:
    answer = CompareAnswer([difference("a", 1.1, 1.3, has_interval=has_interval)])
    heading = next(answer.lay_out(View()))
    assert isinstance(heading, Headline)
    assert "1.20 times" in heading.text and heading.text.endswith(verdict)
    assert ("1.1 - 1.3" in heading.text) is has_interval


def test_collect_prints_the_command_that_repeats_failed_runs(
    synthetic: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, specs = tmp_path / "runs", [synthetic.make_spec("cagnet-1d", "tiny", {"p": p}) for p in (1, 2, 4)]
    synthetic.write_ok(runs, specs[0], 1.0)
    synthetic.write_failed(runs, specs[1], "failed", "ValueError", "no such thing")
    synthetic.write_failed(runs, specs[2], "oom", "MemoryError", "")
    assert main(["collect", "--runs", str(runs), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 ok, 1 failed, 1 oom" in out and str(tmp_path / "runs.parquet") in out
    (command,) = (line.strip() for line in out.splitlines() if line.startswith("  harness run "))
    place = runs / specs[1].run_id / "spec.json"
    assert command == shlex.join(["harness", "run", "--spec", str(place), "--out", str(runs)])
    assert "--fresh" in out


def test_claims_begin_with_the_scoreboard_and_cut_long_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    assert main(["claims", "--figure", "plexus-tab4", "--quick"]) == 0
    heading, table, counts = capsys.readouterr().out.strip().split("\n\n")
    assert heading == "0 results of 42 claims"
    assert table.splitlines()[0] == "plexus: what the paper ran, and facts"
    assert table.splitlines()[-1] == "... 22 more (--all)"
    assert counts == "2 settings and 40 facts not counted (--all)."
    assert main(["claims", "--figure", "plexus-tab3", "--quick"]) == 0
    heading, scoreboard, *_ = capsys.readouterr().out.strip().split("\n\n")
    assert heading == "3 results of 4 claims: 2 hold, 1 cannot be tested here"
    assert scoreboard.splitlines()[-1].split() == ["all", "2", *["0"] * 7, "1", "3"]
    assert main(["claims", "--figure", "plexus-tab4", "--quick", "--score"]) == 0
    assert "PLX-" not in capsys.readouterr().out


def test_frame_of_a_collection_is_its_table_of_runs(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    from harness.cli.commands.evaluating import CollectAnswer, CollectRequest

    synthetic.write_ok(tmp_path / "runs", synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0)
    collection = collect(tmp_path / "runs", tmp_path)
    answer = CollectAnswer(collection, CollectRequest(runs=(tmp_path / "runs",)))
    assert answer.to_frame().equals(collection.runs)


def test_highlighted_strategies_and_formats_are_passed_to_the_figures(
    monkeypatch: pytest.MonkeyPatch, study: Path, tmp_path: Path
) -> None:
    seen = []

    def draw_all(tables: object, out: Path, on_step: object, chosen: object, formats: object) -> list[Path]:
        seen.append((chosen, formats))
        return []

    monkeypatch.setattr("harness.report.figures.draw_all", draw_all)
    given = ["figures", "--tables", str(study / "tables"), "--out", str(tmp_path)]
    assert main([*given, "--highlight", "plexus,rdm"]) == 0
    assert main([*given, "--pictures", "svg"]) == 0
    assert seen == [(("plexus", "rdm"), ("pdf", "png", "svg")), ((), ("svg",))]


def test_report_draws_the_figures_that_the_verb_figures_draws(study: Path, tmp_path: Path) -> None:
    tables = ["--tables", str(study / "tables")]
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    assert main(["report", *tables, "--out", str(page), "--figures", str(figures), "--pictures", "svg"]) == 0
    assert page.is_file()
    drawn = {path.name: path.read_bytes() for path in figures.iterdir()}
    alone = {path.name: path.read_bytes() for path in (study / "figures").iterdir()}
    graphs = ("-isolate-3-8m.", "-products-14m.")  # figures of one graph are drawn in all formats only
    expected = {
        name for name in alone if name.endswith((".svg", ".csv", ".txt")) and not any(map(name.count, graphs))
    }
    assert drawn == {name: alone[name] for name in expected}
    assert len(expected) < len(alone)


def test_report_of_packs_refuses_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "x.tar.gz", "--figures", str(tmp_path)]) == 2
    assert "no --figures" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(point.name for point in registered_strategies()))
def test_recorded_grid_is_printed_in_the_order_of_its_strategy(name: str) -> None:
    for ranks in (1, 2, 4, 8):
        for grid in load_strategy(name).grids(ranks):
            recorded = json.loads(canonical_json({axis.value: size for axis, size in grid.items()}))
            assert format_grid_of(SimpleNamespace(spec={"grid": recorded})) == format_grid(grid)  # type: ignore[arg-type]
