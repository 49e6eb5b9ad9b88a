"""The page of `harness report --history`: one file that loads nothing, with a chart of each series that changed."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli import main
from harness.results.collect import collect

pytestmark = pytest.mark.long


@pytest.fixture
def folders(synthetic: SimpleNamespace, tmp_path: Path) -> list[str]:
    """Tables of three commits. From the second one on, cagnet-1d communicates for three times as long."""
    made = []
    for day, talk in enumerate((0.2, 0.6, 0.6)):
        out = tmp_path / f"day-{day}"
        told = synthetic.provenance(commit=f"{day}" * 40, started=1.79e9 + 86_400 * day)
        for launch in range(3):
            for name, talks in (("serial", 0.0), ("cagnet-1d", talk)):
                spec = synthetic.make_spec(name, "tiny", {"p": 1 if name == "serial" else 2}, launch=launch)
                synthetic.write_ok(out / "runs", spec, 0.5, talks, provenance=told)
        collect(out / "runs", out)
        made.append(str(out))
    return made


def test_page_says_what_changed_and_draws_only_that(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "history.html"
    assert main(["report", "--history", *folders, "--out", str(page)]) == 0
    printed, text = capsys.readouterr().out, page.read_text()
    headline = "6 series over 3 commits: epoch time slower in 1"
    assert headline in printed and f"<h1>{headline}</h1>" in text
    assert text.count("<svg") == 1
    assert "since11111111,slower" in re.sub(r"<[^>]*>|\s", "", text)  # titles are wrapped
    assert not re.search(r"<script|<link|<img|\bsrc=|@import|\bhref=\"(?!#)", text)


def test_page_of_the_same_tables_has_the_same_bytes(folders: list[str], tmp_path: Path) -> None:
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        assert main(["report", "--history", *folders, "--out", str(page)]) == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()
