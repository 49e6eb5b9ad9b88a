"""The page is whole in itself, tells everything, and says what a reader must know before comparing."""

import hashlib
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from harness.report import run_panels
from harness.report.charts import SENTENCES, select_sentences
from harness.report.embedding import TextTable, dump_json, encode_frame
from harness.report.figures.framed_tables import KINDS, FramedTables
from harness.report.figures.kind import FigureKind, read_tables
from harness.report.figures.panels import split_panels
from harness.report.page import SVG, write_report
from harness.report.vega import load_vega
from harness.results import statistics
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.spec.spec import canonical_json

pytestmark = pytest.mark.long

PageOf = Callable[..., str]
BEFORE_FIGURES = ["answer"]
AFTER_FIGURES = ["results", "runs", "claims", "failures", "run", "machines", "provenance", "again"]
VOID = {"meta", "br", "hr", "img", "link", "input"}
FASTEST, FEW, UNDECIDED = "Fastest:", "Fastest in these launches:", "Undecided between"
WARNED = "Before you compare"
"""What the answer begins with, and the heading of what spoils a comparison."""


class Elements(HTMLParser):
    """Collects elements and text, and insists that every element is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.script = "", ""
        self.feed(page.replace(load_vega(), ""))
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
        if "script" in self.open:
            self.script += data
        elif not {"style", "svg"} & set(self.open):
            self.text += " " + data


def document(elements: Elements) -> dict[str, Any]:
    """The data that the script of the page draws from."""
    whole, _ = json.JSONDecoder().raw_decode(elements.script)
    return dict(whole)


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def test_nothing_is_loaded_from_elsewhere(page: str, elements: Elements) -> None:
    for _, attributes in elements.seen:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not {tag for tag, _ in elements.seen} & {"link", "iframe", "object", "embed", "base"}
    own = page.replace(load_vega(), "")
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket|eval\(|innerHTML|url\(|@import", own)
    assert set(re.findall(r"\w+://[^\"' ]*", own)) == {SVG}, "the name of a format, which is never asked for"


def test_the_policy_of_the_page_allows_its_own_scripts_only(page: str) -> None:
    """Whatever a record may smuggle in, no other script runs, and nothing is loaded, Vega's loader included."""
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(" ", 1) for rule in unescape(policy).split("; "))
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules == {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{one}'" for one in hashes),
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert len(scripts) == 2


def test_every_name_is_used_once_and_every_reference_has_its_name(page: str, elements: Elements) -> None:
    names = Counter(attributes["id"] for _, attributes in elements.seen if "id" in attributes)
    assert names.most_common(1)[0][1] == 1
    references = {str(attributes["href"])[1:] for _, attributes in elements.seen if "href" in attributes}
    runs = {name for name in references if name.startswith("run-")}
    assert references - runs <= set(names)
    assert {name.removeprefix("run-") for name in runs} == set(document(elements)["runs"])


def test_the_sections_are_there_in_order(elements: Elements, study: Path) -> None:
    sections = [attributes["id"] for tag, attributes in elements.seen if tag == "section"]
    drawn = {path.stem for path in (study / "figures").glob("*.svg")}
    charts = [kind.name for kind in KINDS if kind.name in drawn]
    assert sections == [*BEFORE_FIGURES, *charts, *AFTER_FIGURES]
    assert "strong-scaling" in charts


def test_every_chart_has_the_rows_of_the_figures_numbers(elements: Elements, study: Path) -> None:
    """The CSV file next to a figure and the charts of its kind come from the same frames."""
    data = document(elements)
    places = [attributes for tag, attributes in elements.seen if tag == "figure"]
    rows: Counter[str] = Counter()
    for place in places:
        rows[str(place["aria-label"]).partition(": ")[0]] += data["charts"][int(str(place["data-chart"]))][
            "rows"
        ]
    for kind in KINDS:
        numbers = study / "figures" / f"{kind.name}.csv"
        assert rows[kind.title] == (len(pd.read_csv(numbers)) if numbers.exists() else 0), kind.name
    assert len(places) == len(data["charts"])


def test_every_claim_is_listed_with_its_verdict(elements: Elements, synthetic: SimpleNamespace) -> None:
    for claim in synthetic.claims():
        assert all(claim[name] in elements.text for name in ("id", "what", "verdict", "reason"))


def test_the_page_is_small(page: str, elements: Elements) -> None:
    """Below 2 MB, and below 8 MB with a thousand runs."""
    assert len(page.encode()) < 2e6
    data = document(elements)
    of_runs = len(json.dumps([data["runs"], [chart["columns"] for chart in data["charts"]]]).encode())
    assert len(load_vega()) + 1000 * of_runs / len(data["runs"]) < 8e6


def test_every_configuration_and_failure_is_listed(study: Path, elements: Elements) -> None:
    runs = read_collected(study / "tables", "runs")
    failed = runs[runs.status != "ok"]
    assert len(failed) == 2
    failures = read_collected(study / "tables", "failures")
    assert set(failures.run_id) == set(failed.run_id)
    for text in (*failed.label, *failures.message):
        assert text in elements.text
    for name in runs["strategy.name"].unique():
        assert name in elements.text
    assert f"{int((runs.status == 'ok').sum()) - 4} of {len(runs) - 4} runs" in elements.text


def test_report_has_the_commands_that_repeat_it(page: str, study: Path, elements: Elements) -> None:
    for words in (
        "harness run --spec",
        "harness collect --runs",
        "harness figures --tables",
        "harness report --tables",
    ):
        assert words in page
    assert "0e7347b5d0f1" in page
    runs = read_collected(study / "tables", "runs")
    data = document(elements)
    specs = [",".join(data["texts"][part] for part in entry["spec"]) for entry in data["runs"].values()]
    assert {f"{{{spec}}}" for spec in specs} == set(runs.spec)


def test_data_of_one_more_launch_is_less_than_its_spec(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    spec = synthetic.make_spec("cagnet-1d", "products-14m", {"p": 1})

    def documents(launches: int) -> str:
        for launch in range(launches):
            again = spec.model_copy(update={"launch": launch})
            synthetic.write_ok(tmp_path / "runs", again, 1.0)
        collect(tmp_path / "runs", tmp_path)
        runs, failures = (read_collected(tmp_path, name) for name in ("runs", "failures"))
        texts = TextTable()
        document = run_panels.build_document(runs, failures, read_tables(tmp_path), texts)
        return dump_json([document, list(texts.numbers)])

    few, many = documents(2), documents(6)
    assert (len(many) - len(few)) / 4 < len(canonical_json(spec.model_dump(mode="json")))


@pytest.mark.parametrize("spec", ['{"a": 1}', '{"a":1,"a":1}', "[1]", "no spec", '{"a":NaN}'])
def test_spec_in_another_spelling_is_kept_as_it_is(spec: str) -> None:
    assert run_panels._intern_spec(spec, TextTable()) == spec


def test_each_panel_is_summed_up_once(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(runs: pd.DataFrame) -> pd.DataFrame:
        calls.append(len(runs))
        return statistics.summarize_configurations(runs)

    monkeypatch.setattr("harness.report.figures.panels.summarize_configurations", counted)
    write_report(FramedTables(study / "tables"), tmp_path / "report.html")
    assert len(calls) == len(split_panels(read_collected(study / "tables", "runs")))


def test_an_experiment_is_repeated_by_its_line(study: Path, tmp_path: Path) -> None:
    """By the name in the plan that has exactly these runs; predictions and printed values are in no plan."""
    runs = read_collected(study / "tables", "runs")
    for name, some in (("mine", runs[runs.source.isin(["measured", ""])]), ("other", runs.head(3))):
        listed = [
            {"run_id": run.run_id, "label": run.label, "spec": json.loads(run.spec)}
            for _, run in some.iterrows()
        ]
        plan = {"schema": 2, "experiment": name, "hash": "", "cost": "", "runs": listed}
        (tmp_path / f"{name}.json").write_text(json.dumps(plan))
    page = write_report(FramedTables(study / "tables"), tmp_path / "report.html", tmp_path).read_text()
    assert "experiment=workflows/experiments/mine.yaml" in page


def test_the_answer_comes_first(elements: Elements, study: Path) -> None:
    """Which two are the fastest, by how much, how sure; it is the first section."""
    runs = read_collected(study / "tables", "runs")
    done = runs[
        (runs["dataset.name"] == "products-14m") & (runs.source == "measured") & (runs.status == "ok")
    ]
    medians = done.groupby(["strategy.name", "ranks", "grid"]).epoch_seconds_median.median().sort_values()
    name, ranks, _ = medians.index[0]
    other = next(strategy for strategy, *_ in medians.index if strategy != name)
    text = " ".join(elements.text.split())
    answer = text[text.index(FEW) :]
    assert answer.startswith(f"{FEW} {name} on {ranks} ranks")
    assert re.search(rf"{other} on \d ranks?, [\d.]+ times as long", answer)
    assert "6 launches" in answer


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (
            [[1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3]],
            [f"{FASTEST} serial", "1.54 to 2.30", "4 and 4 launches"],
        ),
        (
            [[1.0, 2.0, 1.0, 2.0], [1.9, 2.1, 1.9, 2.1]],
            [f"{UNDECIDED} serial", "too close to call", "4 and 4 launches"],
        ),
        ([[1.0], [2.0, 2.1]], [f"{FEW} serial", "needs 4 launches", "1 and 2"]),
    ],
)
def test_summary_states_the_certainty_of_the_order(
    seconds: list[list[float]], said: list[str], synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    def fill(folder: Path) -> None:
        for strategy, launches in zip(("serial", "g3"), seconds, strict=True):
            for launch, value in enumerate(launches):
                spec = synthetic.make_spec(strategy, "tiny", {"p": 1}, launch=launch)
                synthetic.write_quoted(folder, spec, value, "measured")

    text = " ".join(Elements(page_of(fill)).text.split())
    assert all(fact in text for fact in said)


@pytest.mark.parametrize("source", ["emulated", "predicted"])
def test_summary_of_predictions_has_intervals(
    source: str, synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    """Where several strategies are to be compared: a curve over ranks has its figure."""

    def fill(folder: Path) -> None:
        for strategy, dataset, seconds in (
            ("g3", "tiny", 0.1),
            ("plexus", "tiny", 0.2),
            ("g3", "lone", 0.1),
        ):
            for ranks in (2, 4):
                spec = synthetic.make_spec(strategy, dataset, {"p": ranks})
                interval = {"low": seconds / 2, "value": seconds / ranks, "high": 20 * seconds}
                told = {"predicted": {"seconds": interval}}
                synthetic.write_quoted(folder, spec, seconds / ranks, source, **told)

    text = " ".join(Elements(page_of(fill)).text.split())
    assert f"{FASTEST} g3 ({source}) on 4 ranks, 25.0 ms" in text
    assert f"plexus ({source}) on 4 ranks, 2.00 times" in text
    assert text.index("0.0500 to 2.00 s") < text.index("0.100 to 4.00 s")
    assert text.count(FASTEST) == 1


def test_the_page_says_when_no_parallel_run_pays(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    """With the reason that the tables know: a small graph, the share of communication, cores that ranks share."""

    def fill(folder: Path) -> None:
        synthetic.write_ok(folder, synthetic.make_spec("serial", "tiny", {"p": 1}), 0.001)
        told = synthetic.provenance(cores=2, ranks_on_host=4, threads=1)
        for name in ("cagnet-1d", "plexus"):
            spec = synthetic.make_spec(name, "tiny", {"p": 4})
            synthetic.write_ok(folder, spec, 0.001, 0.02, provenance=told)

    text = " ".join(Elements(page_of(fill)).text.split())
    assert re.search(r"serial on 1 rank, by a factor of 2\d", text)
    assert re.search(r"communicate 9\d", text)
    for fact in ("12,000 vertices", "90,000 nonzeros", "4 ranks with 1 thread each on 2 cores"):
        assert fact in text


def test_launches_are_identified_by_number_and_time(elements: Elements) -> None:
    entries = document(elements)["runs"].values()
    assert sorted(entry["n"] for entry in entries) == list(range(1, len(entries) + 1))
    assert {entry["launch"] for entry in entries if entry["status"] == "ok" and "ranks" in entry} == {
        f"launch {number}, 2026-09-21 14:13:20 UTC" for number in (0, 1)
    }


def test_timelines_add_up_to_the_median_epoch_of_each_rank(study: Path, elements: Elements) -> None:
    epochs = read_collected(study / "tables", "epochs")
    drawn = 0
    for run_id, entry in document(elements)["runs"].items():
        timed = epochs[(epochs.run_id == run_id) & (epochs.epoch >= 0)]
        slowest = timed.groupby("epoch").seconds.max().sort_values()
        for rank, *parts in entry.get("ranks", []):
            drawn += 1
            mine = timed[(timed.rank_id == rank) & (timed.epoch == slowest.index[(len(slowest) - 1) // 2])]
            micros = sum(part[2] for part in parts)
            assert micros == pytest.approx(1e6 * mine.seconds.item(), abs=len(parts) + 0.005 * 1e6)
    assert drawn > 20


def test_the_same_tables_give_the_same_page(study: Path, tmp_path: Path) -> None:
    pages = [
        write_report(FramedTables(study / "tables"), tmp_path / "report.html").read_text() for _ in range(2)
    ]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"dirty": True}, "2 runs"),
        ({"commit": "", "dirty": None}, "commit"),
        ({"load_average": 99.0}, "2 runs"),
    ],
)
def test_report_warns_of_incomparable_runs(
    changes: dict[str, object], said: str, synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    def fill(folder: Path) -> None:
        for launch in range(2):
            spec = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch)
            synthetic.write_ok(folder, spec, 0.01, provenance=synthetic.provenance(**changes))

    _, warned, warning = page_of(fill).partition(WARNED)
    assert bool(warned) == bool(said) and said in warning


def test_differences_between_runs_are_said(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    def fill(folder: Path) -> None:
        for number, protocol in enumerate(("corrected", "faithful")):
            spec = synthetic.make_spec("serial", "tiny", {"p": 1}, protocol=protocol)
            changes = {"commit": f"{number}" * 40, "host": f"node{number}", "store_manifest": f"{number}"}
            synthetic.write_ok(folder, spec, 0.01, provenance=synthetic.provenance(**changes))

    _, _, warning = page_of(fill).partition(WARNED)
    for fact in ("2 commits", "node0, node1", "corrected and faithful", "stored graph"):
        assert fact in warning


def test_runs_of_other_programs_are_named_as_such(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    def fill(folder: Path) -> None:
        synthetic.write_ok(folder, synthetic.make_spec("bns-gcn", "tiny", {"p": 2}), 0.01)
        spec = synthetic.make_spec("bns-gcn", "tiny", {"p": 2}, seed=1)
        synthetic.write_quoted(folder, spec, 0.02, "external")

    text = Elements(page_of(fill)).text
    assert "1 of 1 run" in text and "1 run of another program" in text


def test_a_refused_prediction_is_neither_a_number_nor_a_run(
    synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    def fill(folder: Path) -> None:
        specs = [synthetic.make_spec("bns-gcn", "tiny", {"p": 2}, seed=seed) for seed in range(5)]
        synthetic.write_ok(folder, specs[0], 0.01)
        synthetic.write_ok(folder, synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}), 0.02)
        synthetic.write_failed(folder, specs[1], "failed", "Died", "of SIGKILL")
        synthetic.write_quoted(folder, specs[2], 0.02, "predicted")
        for spec in specs[3:]:
            synthetic.write_failed(folder, spec, "refused", "UserError", "unknown sizes", "predicted")

    text = Elements(page_of(fill)).text
    for count in ("2 of 3 runs", "1 predicted value", "(1 failed)", "(2 refused)"):
        assert count in text


def test_text_of_users_is_text(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """In the tables of the page and in its data."""
    evil = "<script>alert('x')</script>"
    spec, other = (
        synthetic.make_spec(f"--> {evil}", "evil", {"p": 1}),
        synthetic.make_spec("serial", "tiny", {"p": 1}),
    )
    told = synthetic.provenance(host=evil, commit=evil)
    synthetic.write_ok(tmp_path / "runs", spec, 0.01, provenance=told)
    synthetic.write_failed(tmp_path / "runs", other, "failed", evil, f"{evil} & more")
    collect(tmp_path / "runs", tmp_path)
    elements = Elements(write_report(FramedTables(tmp_path), tmp_path / "report.html").read_text())
    assert [tag for tag, _ in elements.seen].count("script") == 3, (
        "the data, Vega, and the script of the page"
    )
    assert evil in elements.text
    assert evil not in elements.script and evil in str(document(elements))


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
    assert absent.label in text
    assert "1 of 2 runs" in text


def test_the_measured_payload_is_compared_with_the_formula(
    synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    def fill(folder: Path) -> None:
        spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2})
        summary = {
            "epoch_seconds_median": 0.1,
            "elements_payload": 3.0,
            "elements_payload_formula": 2.0,
            "elements_received": 12345.0,
        }
        synthetic.write_ok(folder, spec, 0.1, summary=summary)

    text = Elements(page_of(fill)).text
    assert "payload / formula" in text
    assert " 1.5 " in text
    assert "12,345" in text


def test_frames_become_columns_with_texts_stored_once() -> None:
    texts = TextTable()
    frame = pd.DataFrame(
        {
            "curve": ["a", "b", "a"],
            "seconds": [0.123456789, float("nan"), 3.0],
            "source": ["x"] * 3,
            "done": [True] * 3,
        }
    )
    assert encode_frame(frame, texts) == {
        "curve": {"values": [0, 1, 0], "texts": True},
        "seconds": {"values": [0.123457, None, 3]},
        "source": {"values": [2], "texts": True},
        "done": {"values": [1]},
    }
    assert list(texts.numbers) == ["a", "b", "x"]


def test_captions_speak_of_the_marks_that_are_drawn() -> None:
    caption = "Medians. Dotted background: cores. Crossed-out markers: failures. Hollow markers: some."
    frame = pd.DataFrame({"curve": ["a"], "status": ["ok"], "source": ["measured"], "shared_cores": [False]})
    assert select_sentences(caption, [frame]) == "Medians."
    drawn = select_sentences(caption, [frame, frame.assign(status="oom")])
    assert drawn == "Medians. Crossed-out markers: failures."
    drawn = select_sentences(caption, [frame.assign(shared_cores=True, source="published")])
    assert drawn == "Medians. Dotted background: cores. Hollow markers: some."


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_captions_have_the_sentences_whose_marks_may_be_absent(kind: FigureKind) -> None:
    """A sentence that speaks of such a mark begins with words that the page knows."""
    sentences = re.split(r"(?<=\.)\s+", " ".join(kind.caption.split()))
    for sentence in sentences:
        if re.search(r"hollow markers|crossed|dotted background|coincide", sentence, re.IGNORECASE):
            assert sentence.startswith(tuple(SENTENCES)), sentence


def test_remarks_that_hold_for_several_graphs_are_said_once(
    synthetic: SimpleNamespace, page_of: PageOf
) -> None:
    def fill(folder: Path) -> None:
        for dataset, seconds in (("tiny", 0.02), ("lone", 0.03)):
            synthetic.write_ok(folder, synthetic.make_spec("serial", dataset, {"p": 1}), 0.001)
            synthetic.write_ok(folder, synthetic.make_spec("plexus", dataset, {"p": 4}), 0.001, seconds)

    text = " ".join(Elements(page_of(fill)).text.split())
    assert text.count(FEW) == 2
    assert text.count("4 launches of each") == text.count("slower than serial on 1 rank") == 1


def test_rows_are_sorted_by_epoch_time(synthetic: SimpleNamespace, page_of: PageOf) -> None:
    def fill(folder: Path) -> None:
        for strategy, seconds in (("serial", 0.3), ("g3", 0.1), ("plexus", 0.2)):
            synthetic.write_quoted(
                folder, synthetic.make_spec(strategy, "tiny", {"p": 1}), seconds, "measured"
            )
        synthetic.write_failed(
            folder, synthetic.make_spec("rdm", "tiny", {"p": 1}), "oom", "Died", "of memory"
        )

    table = page_of(fill).split('class="results cards"')[1]
    names = re.findall(r'<tr><td class="name" data-name="strategy">([^<]*)', table)
    assert names == ["g3", "plexus", "serial", "rdm"]
