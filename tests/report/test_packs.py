"""The report of several packs: groups next to each other, who wins, and no code or markup of a stranger's pack."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import harness
from harness.base.errors import UserError
from harness.cli import main
from harness.report.pack.archive import SUMS, list_checksums, pack_archive, read_archive
from harness.report.pack.reading import FOLDER
from harness.report.packs_page import PacksReport, write_packs_report
from harness.results.parquet import read_table, to_pandas
from harness.results.ranking import CONTRIBUTIONS
from harness.spec.root import find_root
from tests.report.test_page import Elements
from tests.synthetic_packs import MARKUP, add_runs, change_record, pack_runs
from tests.synthetic_runs import make_spec, write_ok, write_quoted

pytestmark = pytest.mark.long

ROOT = find_root()


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and packs of two groups with different machines, one with a prediction and markup; a hostile file."""
    base = tmp_path_factory.mktemp("groups")
    for group, factor, cpu in (("Group A", 1.0, "AMD EPYC 7763"), ("Group B", 2.0, "Intel Xeon")):
        folder = base / group
        for ranks in (1, 2):
            add_runs(folder, "cagnet-1d", {"p": ranks}, factor / ranks, range(4), cpu=cpu)
        add_runs(folder, "plexus", {"x": 2, "y": 1, "z": 1}, 1.5 * factor, range(4), cpu=cpu)
        if group == "Group B":
            write_quoted(folder, make_spec("bns-gcn", "products-14m", {"p": 2}), 0.3, "predicted")
            for run in add_runs(folder, "serial", {"p": 1}, 3.0, [0], cpu=cpu):
                change_record(run, lambda record: record["provenance"].update(host=MARKUP, command=MARKUP))
                change_record(run, lambda record: record.update(label=MARKUP))
        pack_runs(base / "packs", group, folder)
    (base / "packs" / "hostile.tar.gz").write_bytes(b"not an archive")
    return base


@pytest.fixture(scope="module")
def report(groups: Path) -> PacksReport:
    return write_packs_report([groups / "packs"], groups / "report", ROOT)


@pytest.fixture(scope="module")
def elements(report: PacksReport) -> Elements:
    return Elements(report.page.read_text())


def test_page_says_who_wins_by_how_much_and_how_sure(elements: Elements) -> None:
    text = " ".join(elements.text.split())
    for machine in ("Group A: 64 cores of AMD EPYC 7763", "Group B: 64 cores of Intel Xeon"):
        answer = text.split(f"{machine}, 2 ranks, exact strategies ")[1][:120]
        assert answer.startswith("cagnet-1d p2: ") and "times as fast as plexus" in answer
    assert "from 2 groups" in text


def test_each_machine_is_a_column(report: PacksReport, elements: Elements) -> None:
    text = " ".join(elements.text.split())
    table = text.split("Epoch times, products-14m ")[1]
    machines = "Group A: 64 cores of AMD EPYC 7763 (s) Group B: 64 cores of Intel Xeon (s)"
    assert table.startswith(f"strategy configuration ranks results {machines}")
    medians = report.rows.groupby(["contributor", "strategy.name"]).epoch_seconds_median.median()
    assert (
        f"{medians['Group A', 'plexus']:.2f}, " in table and f"{medians['Group B', 'plexus']:.2f}, " in table
    )


def test_groups_have_charts_and_results_of_their_own(elements: Elements) -> None:
    titles = [str(values["aria-label"]) for tag, values in elements.seen if tag == "figure"]
    for machine in ("Group A: 64 cores of AMD EPYC 7763", "Group B: 64 cores of Intel Xeon"):
        assert any(title.endswith(f"on {machine}") for title in titles)
        assert f"products-14m, on {machine}" in elements.text
    assert "bns-gcn predicted" in " ".join(elements.text.split()), "next to the measured runs with its card"


def test_texts_of_strangers_stay_texts(report: PacksReport, elements: Elements) -> None:
    assert "img" not in {tag for tag, _ in elements.seen}
    assert MARKUP in elements.text and "&lt;img src=x" in report.page.read_text()


def test_strategy_of_markup_stays_text(tmp_path: Path) -> None:
    for ranks in (1, 2):
        write_ok(tmp_path / "runs", make_spec(MARKUP, "products-14m", {"p": ranks}), 1.0 / ranks)
    pack = pack_runs(tmp_path / "packs", "Group & Sons", tmp_path / "runs")
    written = write_packs_report([pack], tmp_path / "report", ROOT)
    assert (written.rows["strategy.name"] == MARKUP).all()
    assert "img" not in {tag for tag, _ in Elements(written.page.read_text()).seen}


def test_hostile_pack_is_refused_and_named(groups: Path, report: PacksReport) -> None:
    (refused,) = (each for each in report.packs if each.refusal)
    assert refused.file == "hostile.tar.gz" and "is not an archive" in refused.refusal
    page = report.page.read_text()
    assert "hostile.tar.gz" in page and str(groups) not in page


def test_pack_without_a_readable_run_does_not_stop_the_others(groups: Path, tmp_path: Path) -> None:
    add_runs(tmp_path / "runs", "serial", {"p": 1}, 1.0, [0])
    damaged = pack_runs(tmp_path / "packs", "Group C", tmp_path / "runs")
    files = read_archive(damaged, FOLDER)
    files |= {name: b"PAR1" + b"0" * 60 for name in files if name.endswith("ledger.parquet")}
    files[SUMS] = list_checksums({name: data for name, data in files.items() if name != SUMS})
    damaged.write_bytes(pack_archive(FOLDER, files))
    with pytest.raises(UserError, match="No pack has a run"):
        write_packs_report([damaged], tmp_path / "report", ROOT)
    written = write_packs_report([damaged, groups / "packs" / "Group-A.tar.gz"], tmp_path / "report", ROOT)
    assert set(written.rows.contributor) == {"Group A"}
    assert "Group C" in written.page.read_text() and "record: 1 broken" in written.page.read_text()


def test_run_that_was_packed_twice_counts_once(groups: Path, report: PacksReport, tmp_path: Path) -> None:
    """A group may pack all its runs again, for example every month."""
    folder = Path(shutil.copytree(groups / "Group A", tmp_path / "runs"))
    add_runs(folder, "rdm", {"p": 2}, 2.0, range(4), cpu="AMD EPYC 7763")
    again = pack_runs(tmp_path / "packs", "Group A", folder)
    written = write_packs_report([groups / "packs" / "Group-A.tar.gz", again], tmp_path / "report", ROOT)
    assert len(written.rows) == (report.rows.contributor == "Group A").sum() + 4
    assert written.rows.is_ranked.all()


def test_same_packs_give_the_same_files(groups: Path, report: PacksReport, tmp_path: Path) -> None:
    write_packs_report([groups / "packs"], tmp_path / "report", ROOT)
    for path in report.page.parent.iterdir():
        assert (tmp_path / "report" / path.name).read_bytes() == path.read_bytes(), path.name


def test_report_is_written_again_and_other_folders_are_refused(groups: Path, tmp_path: Path) -> None:
    pack, out = groups / "packs" / "Group-A.tar.gz", tmp_path / "report"
    write_packs_report([pack], out, ROOT)
    write_packs_report([pack], out, ROOT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("years of work")
    with pytest.raises(UserError, match="--out"):
        write_packs_report([pack], tmp_path / "mine", ROOT)
    assert (tmp_path / "mine" / "index.html").read_text() == "years of work"


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_places_without_packs_are_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="harness pack"):
        write_packs_report([tmp_path / place], tmp_path / "report", ROOT)


def test_tables_can_be_loaded_and_keep_groups_apart(report: PacksReport) -> None:
    folder = report.page.parent
    loaded = harness.load(folder)
    contributions = to_pandas(read_table(folder / "contributions.parquet", CONTRIBUTIONS, ""), CONTRIBUTIONS)
    runs = loaded.runs.merge(contributions, on="run_id")
    assert len(runs) == len(report.rows) == loaded.runs.run_id.nunique()
    assert (runs.machine == runs.on_machine).all()
    expected = report.rows.groupby("contributor").epoch_seconds_median.median()
    pd.testing.assert_series_equal(runs.groupby("contributor").epoch_seconds_median.median(), expected)


def test_pack_can_be_compared_with_another(groups: Path) -> None:
    one, other = (str(groups / "packs" / f"Group-{name}.tar.gz") for name in "AB")
    answer: Any = harness.compare(one, other)
    ratios = answer.to_frame().set_index("label").ratio
    assert sorted(ratios) == pytest.approx([2.0, 2.0, 2.0], rel=0.05)


def test_command_names_what_was_refused_and_what_is_not_ranked(
    groups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(groups / "packs"), "--out", str(tmp_path / "report")]) == 1
    printed = capsys.readouterr().out
    assert "index.html" in printed and "can be ranked" in printed and "hostile.tar.gz" in printed


@pytest.mark.parametrize("verb", ["site", "submission", "artifact"])
def test_old_verb_names_its_successor(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "pack"]) == 2
    told = capsys.readouterr().err
    assert f"does not have {verb} any more" in told and ("harness pack" in told or "harness report" in told)
