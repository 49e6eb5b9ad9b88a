"""The pages of a site: every link leads somewhere, nothing comes from a network, and strangers' texts stay texts.

A site that is built again reads and writes only what changed.
"""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import harness
from harness.cli import main
from harness.errors import UserError
from harness.site import contributions
from harness.site.writing import WrittenSite, write_site
from harness.spec.root import find_root
from tests.site.conftest import MARKUP, AddRuns, Contribute

pytestmark = pytest.mark.long

ROOT = find_root()


@pytest.fixture
def archives(made: tuple[Path, WrittenSite], tmp_path: Path) -> Path:
    """A copy of the archives, next to a copy of the runs of Group A."""
    shutil.copytree(made[0] / "Group A", tmp_path / "Group A")
    return Path(shutil.copytree(made[0] / "archives", tmp_path / "archives"))


@pytest.fixture
def site(made: tuple[Path, WrittenSite], tmp_path: Path) -> WrittenSite:
    """A copy of the site."""
    return replace(made[1], folder=Path(shutil.copytree(made[1].folder, tmp_path / "site")))


class Links(HTMLParser):
    """The targets of links, the names of places, and the elements of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.elements: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "xlink:href") and value:
                self.links.append(value)
            if name == "id" and value:
                self.names.add(value)


def test_all_links_lead_somewhere(site: WrittenSite) -> None:
    pages = {page.resolve(): Links(page) for page in site.folder.rglob("*.html")}
    assert len(pages) == site.pages
    runs = 0
    for page, found in pages.items():
        for link in found.links:
            assert not re.match(r"[a-z]+:|//", link), link
            name, _, place = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target in pages, f"{page.name}: {link}"
            assert not place or place in pages[target].names, f"{page.name}: {link}"
            runs += place.startswith("run-")
    assert runs > len(site.rows)  # in tables and in charts
    assert any("svg" in found.elements for found in pages.values())


def test_texts_of_strangers_stay_texts(site: WrittenSite) -> None:
    for page in site.folder.rglob("*.html"):
        assert "img" not in Links(page).elements, page
    submission = next(
        page for page in site.folder.glob("submissions/*.html") if "onerror" in page.read_text()
    )
    assert "&lt;img src=x" in submission.read_text()


def test_strategy_and_group_of_markup_stay_texts(
    tmp_path: Path, synthetic: Any, contribute: Contribute
) -> None:
    folder = tmp_path / "runs"
    for ranks in (1, 2):
        spec = synthetic.make_spec(MARKUP, "products-14m", {"p": ranks})
        synthetic.write_ok(folder, spec, 1.0 / ranks)
    site = write_site([contribute("Group & Sons", folder)], tmp_path / "site", ROOT)
    assert (site.rows["strategy.name"] == MARKUP).all()
    for page in site.folder.rglob("*.html"):
        assert "img" not in Links(page).elements, page


def test_hostile_archive_is_refused_and_said(site: WrittenSite) -> None:
    assert [each.file for each in site.refused] == ["hostile.tar.gz"]
    assert "is not an archive" in site.refused[0].refusal
    assert "hostile.tar.gz" in (site.folder / "index.html").read_text()
    assert str(site.folder.parent) not in (site.folder / "index.html").read_text()


def test_other_sources_stand_apart(site: WrittenSite) -> None:
    (page,) = [page for page in site.folder.glob("tasks/*.html") if "Predicted" in page.read_text()]
    text = page.read_text()
    assert text.index('id="predicted"') > text.index('id="machine-1"')
    predicted = text[text.index('id="predicted"') :]
    assert "bns-gcn" in predicted and "plexus" not in predicted


def test_first_view_is_small(site: WrittenSite) -> None:
    assert (site.folder / "index.html").stat().st_size < 1_000_000
    assert "<script src" not in (site.folder / "index.html").read_text()


def test_site_is_built_again_from_what_it_kept(
    site: WrittenSite, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "verify_run", lambda *_: pytest.fail("verified again"))
    again = write_site([archives], site.folder, ROOT)
    assert again.written == 0 and again.rows.equals(site.rows)


def test_changed_archive_is_verified_again_and_gone_pages_are_removed(
    site: WrittenSite, archives: Path, tmp_path: Path, add_runs: AddRuns, contribute: Contribute
) -> None:
    pages = set(site.folder.glob("submissions/*.html"))
    add_runs(tmp_path / "Group A", "serial", {"p": 1}, 2.5, range(1))
    contribute("Group A", tmp_path / "Group A")
    again = write_site([archives], site.folder, ROOT)
    assert len(again.rows) == len(site.rows) + 1
    assert len(pages & set(site.folder.glob("submissions/*.html"))) == 1


def test_same_archives_give_the_same_files(site: WrittenSite, archives: Path, tmp_path: Path) -> None:
    other = write_site([archives], tmp_path / "other", ROOT)
    for path in site.folder.rglob("*.html"):
        assert (other.folder / path.relative_to(site.folder)).read_bytes() == path.read_bytes()
    for name in ("rows.parquet", "rows.json"):
        assert (other.folder / name).read_bytes() == (site.folder / name).read_bytes()


def test_folder_of_other_files_is_refused(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not a site"):
        write_site([archives], tmp_path / "mine", ROOT)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_places_without_archives_are_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="submission pack"):
        write_site([tmp_path / place], tmp_path / "site", ROOT)


# Rows for others to use.


def test_rows_can_be_loaded(site: WrittenSite) -> None:
    loaded = harness.load(site.folder / "rows.parquet")
    assert len(loaded.runs) == len(site.rows) and loaded.epochs.empty
    assert set(loaded.runs.contributor) == {"Group A", "Group B"}
    expected = site.rows.groupby("contributor").epoch_seconds_median.median()
    pd.testing.assert_series_equal(loaded.runs.groupby("contributor").epoch_seconds_median.median(), expected)
    rows = json.loads((site.folder / "rows.json").read_text())
    assert [row["run_id"] for row in rows] == list(site.rows.run_id)
    assert all(len(str(value)) < 1000 for row in rows for value in row.values())


def test_groups_can_be_compared(site: WrittenSite) -> None:
    rows = site.folder / "rows.parquet"
    answer = harness.compare(f"{rows}:Group A", f"{rows}:Group B")
    ratios = answer.to_frame().set_index("label").ratio
    medians = {
        group: site.rows[site.rows.contributor == group].groupby("run_id").epoch_seconds_median.first()
        for group in ("Group A", "Group B")
    }
    labels = site.rows.groupby("run_id").label.first()
    expected = (medians["Group B"] / medians["Group A"]).dropna()
    assert sorted(ratios) == pytest.approx(
        sorted(expected.groupby(labels.str.rpartition("-")[0]).median()), rel=0.05
    )


@pytest.mark.parametrize(
    ("side", "message"),
    [("", "Name a group"), (":Group C", "has no runs of 'Group C'. It has runs of Group A, Group B.")],
)
def test_ambiguous_side_is_refused(side: str, message: str, site: WrittenSite) -> None:
    with pytest.raises(UserError, match=message):
        harness.compare(f"{site.folder}/rows.parquet{side}", "results")


def test_command_says_what_it_wrote(
    archives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", str(archives), "--out", str(tmp_path / "site")]) == 1  # an archive was refused
    printed = capsys.readouterr().out
    assert "index.html" in printed and "can be ranked" in printed and "hostile.tar.gz" in printed
