"""The page is whole in itself, tells everything, and says what a reader must know before comparing."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import UserError
from harness.figures import draw_all
from harness.figures.drawing import KINDS
from harness.report import write
from harness.results.collect import collect
from harness.results.parquet import read_collected

PageOf = Callable[..., str]
SECTIONS = [
    "run",
    "machines",
    "results",
    "strong-scaling",
    "throughput",
    "breakdown",
    "sampling",
    "utilisation",
    "costs",
    "accuracy",
    "papers",
    "claims",
    "failures",
    "provenance",
    "again",
]
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Elements(HTMLParser):
    """Collects elements and text, and insists that every element is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "svg"} & set(self.open):
            self.text += " " + data


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def test_nothing_is_loaded_from_elsewhere(page: str, elements: Elements) -> None:
    for _, attributes in elements.seen:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not {tag for tag, _ in elements.seen} & {"script", "link", "iframe", "object", "embed", "base"}
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "://" not in page


def test_every_name_is_used_once_and_every_reference_has_its_name(page: str, elements: Elements) -> None:
    names = Counter(attributes["id"] for _, attributes in elements.seen if "id" in attributes)
    assert names.most_common(1)[0][1] == 1
    references = {str(attributes["href"])[1:] for _, attributes in elements.seen if "href" in attributes}
    references |= set(re.findall(r"url\(#([^)]*)\)", page))
    assert references <= set(names)


def test_the_sections_are_there_in_order(elements: Elements) -> None:
    assert [attributes["id"] for tag, attributes in elements.seen if tag == "section"] == SECTIONS


def test_every_figure_is_drawn_inline(elements: Elements) -> None:
    """Of two graphs, on one of which nobody samples, and of the claims of one paper's figure."""
    assert sum(tag == "svg" for tag, _ in elements.seen) == 2 * len(KINDS) - 2
    labels = [attributes.get("aria-label") for tag, attributes in elements.seen if tag == "figure"]
    assert "Strong scaling on products-14m" in labels


def test_every_claim_is_told_with_its_verdict(elements: Elements, synthetic: SimpleNamespace) -> None:
    assert (
        "plexus-fig8c: 2 holds, 1 within a factor, 1 contradicted, 1 cannot be tested here" in elements.text
    )
    assert "plexus, text: 1 holds" in elements.text
    for claim in synthetic.claims():
        assert all(claim[name] in elements.text for name in ("id", "what", "verdict", "reason"))


def test_the_page_is_small(page: str) -> None:
    assert len(page.encode()) < 5e6


def test_every_configuration_and_every_failure_is_told(study: Path, elements: Elements) -> None:
    runs = read_collected(study / "tables", "runs")
    failed = runs[runs.status != "ok"]
    assert len(failed) == 2
    for label, message in zip(failed.label, failed["error.message"], strict=True):
        assert label in elements.text
        assert message in elements.text
    for name in runs["strategy.name"].unique():
        assert name in elements.text
    assert f"{int((runs.status == 'ok').sum()) - 4} of {len(runs) - 4} runs succeeded" in elements.text


def test_the_way_back_is_told(page: str, study: Path) -> None:
    for words in (
        "harness run --spec",
        "harness collect --runs",
        "harness figures --tables",
        "harness report --tables",
    ):
        assert words in page
    assert "0e7347b5d0f1" in page
    runs = read_collected(study / "tables", "runs")
    assert all(spec.replace('"', "&#34;") in page for spec in runs.spec)


def test_clean_runs_of_one_commit_need_no_warning(page: str) -> None:
    assert "Before you compare" not in page


def test_the_same_tables_give_the_same_page(study: Path, tmp_path: Path) -> None:
    pages = [
        write(study / "tables", study / "figures", tmp_path / "report.html").read_text() for _ in range(2)
    ]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dirty": True}, "2 runs come from a checkout with changes that no commit holds"),
        ({"commit": "", "dirty": None}, "The commit of some runs is unknown"),
        ({"load_average": 99.0}, "2 runs ended on a machine with more work than cores"),
    ],
)
def test_what_spoils_a_comparison_is_said(
    changes: dict[str, object], said: str, synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    def fill(folder: Path) -> None:
        for launch in range(2):
            spec = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch)
            synthetic.write_ok(folder, spec, 0.01, provenance=synthetic.provenance(**changes))

    page = page_of(fill)
    assert "Before you compare" in page
    assert said in page


def test_differences_between_runs_are_said(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    def fill(folder: Path) -> None:
        for number, protocol in enumerate(("corrected", "faithful")):
            spec = synthetic.make_spec("serial", "tiny", {"p": 1}, protocol=protocol)
            changes = {"commit": f"{number}" * 40, "host": f"node{number}", "store_manifest": f"{number}"}
            synthetic.write_ok(folder, spec, 0.01, provenance=synthetic.provenance(**changes))

    page = page_of(fill)
    assert "The runs come from 2 commits" in page
    assert "from 2 machines (node0, node1)" in page
    assert "protocols corrected and faithful" in page
    assert "stored graph changed between runs of tiny" in page
    assert "tiny, faithful protocol" in page


def test_runs_of_other_programs_are_named_as_such(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    def fill(folder: Path) -> None:
        synthetic.write_ok(folder, synthetic.make_spec("bns-gcn", "tiny", {"p": 2}), 0.01)
        spec = synthetic.make_spec("bns-gcn", "tiny", {"p": 2}, seed=1)
        synthetic.write_quoted(folder, spec, 0.02, "external")

    text = Elements(page_of(fill)).text
    assert "1 of 1 run succeeded" in text
    assert "1 run of another program" in text
    assert "Numbers of other programs (external) come from the programs' logs" in text


def test_text_of_users_is_text(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """In the tables of the page, and in the figures too."""
    evil = "<script>alert('x')</script>"
    spec, other = (
        synthetic.make_spec(f"--> {evil}", "evil", {"p": 1}),
        synthetic.make_spec("serial", "tiny", {"p": 1}),
    )
    told = synthetic.provenance(host=evil, commit=evil)
    synthetic.write_ok(tmp_path / "runs", spec, 0.01, provenance=told)
    synthetic.write_failed(tmp_path / "runs", other, "failed", evil, f"{evil} & more")
    collect(tmp_path / "runs", tmp_path)
    draw_all(tmp_path, tmp_path / "figures")
    elements = Elements(write(tmp_path, tmp_path / "figures", tmp_path / "report.html").read_text())
    assert "script" not in {tag for tag, _ in elements.seen}
    assert evil in elements.text


def test_a_planned_run_without_a_record_is_said(
    synthetic: SimpleNamespace, tmp_path: Path, page_of: PageOf
) -> None:
    done = synthetic.make_spec("serial", "tiny", {"p": 1})
    absent = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2})
    listed = [
        {"run_id": s.run_id, "label": s.label, "spec": s.model_dump(mode="json")} for s in (done, absent)
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"schema": 2, "runs": listed}))
    text = Elements(page_of(lambda folder: synthetic.write_ok(folder, done, 0.01), plan)).text
    assert "– missing" in text
    assert absent.label in text
    assert "1 of 2 runs succeeded" in text


def test_the_measured_and_the_stated_words_are_compared(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    def fill(folder: Path) -> None:
        spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2})
        summary = {
            "epoch_seconds_median": 0.1,
            "words_payload": 3.0,
            "words_formula": 2.0,
            "words_received": 12345.0,
        }
        synthetic.write_ok(folder, spec, 0.1, summary=summary)

    text = Elements(page_of(fill)).text
    assert "words measured / formula" in text
    assert " 1.5 " in text
    assert "12,345" in text


def test_figures_of_other_tables_are_refused(study: Path, synthetic: SimpleNamespace, tmp_path: Path) -> None:
    shutil.copytree(study / "runs", tmp_path / "runs")
    synthetic.write_ok(
        tmp_path / "runs", synthetic.make_spec("serial", "products-14m", {"p": 1}, launch=9), 1.9
    )
    collect(tmp_path / "runs", tmp_path)
    with pytest.raises(UserError, match=r"other tables.*harness figures"):
        write(tmp_path, study / "figures", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_missing_figures_are_refused(study: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"strong-scaling-.*cannot be read.*harness figures"):
        write(study / "tables", tmp_path, tmp_path / "report.html")


def test_missing_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no table.*harness collect"):
        write(tmp_path, tmp_path, tmp_path / "report.html")


def test_many_runs_keep_their_specs_in_the_table(
    study: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from harness.report import page as module

    monkeypatch.setattr(module, "SPECS_SHOWN", 3)
    page = write(study / "tables", study / "figures", tmp_path / "report.html").read_text()
    assert "column <code>spec</code>" in page
    assert "&#34;evaluate_every&#34;" not in page
