"""Every claim of a paper has a verdict or a reason for its absence, and verdicts depend only on numbers."""

import re
import subprocess
import sys
from math import log, sqrt
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest

from benchmarks.held_out import draw_from_strata
from harness.base.errors import UserError
from harness.claims import Claim, Evidence, Result, read_claims, select
from harness.claims.estimates import (
    Choices,
    EpochTime,
    EpochTimes,
    Estimate,
    average,
    divide_epochs,
    enclose,
    is_falling,
)
from harness.claims.formula import Formula
from harness.claims.verdicts import ClaimHeading, Source, compare, judge
from harness.cli import main
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.experiment.scales import select_scale
from harness.prediction.epoch import PredictedSeconds, Prediction
from harness.prediction.pricing import list_constants
from harness.results.parquet import read_claims_table, serialize_table, to_arrow
from harness.results.schema import RUNS
from harness.results.table_schema import TEXT, TRUTH
from harness.spec.machine_card import load_machine_card

ROOT = Path(__file__).parents[2]
CLAIMS = read_claims(ROOT)
EVERY = [claim for claims in CLAIMS.values() for claim in claims]
WITHOUT_RUNS = ("card", "machine", "experiment", "formula")


def claim(**fields: Any) -> Claim:
    usual = {**dict.fromkeys(Claim.model_fields, ""), "formula": None}
    known = {
        "id": "X-1",
        "comparator": "=",
        "kind": "ratio",
        "basis": "formula",
        "tolerance": "exact",
        "value": "2",
        "role": "result",
    }
    return Claim.model_validate({**usual, **known, **fields})


def test_all_claims_of_the_five_papers_are_here() -> None:
    assert {paper: len(claims) for paper, claims in CLAIMS.items()} == {
        "bulk-sampling": 48,
        "cagnet": 88,
        "g3": 127,
        "plexus": 199,
        "scalegnn": 126,
    }
    assert len({claim.id for claim in EVERY}) == len(EVERY) == 588


def test_a_claim_without_a_formula_says_why() -> None:
    assert not [claim.id for claim in EVERY if not claim.formula and not claim.note]
    assert sum(claim.formula is not None for claim in EVERY) == 457


def test_claims_that_quote_other_work_have_no_formula() -> None:
    assert not [claim.id for claim in EVERY if claim.basis in ("cited", "nothing") and claim.formula]


@pytest.mark.parametrize("paper", CLAIMS)
def test_claims_that_need_no_run_hold_or_are_explained(paper: str, evidence: Evidence) -> None:
    """What can be said on any machine: a claim that does not hold has a note that says what is behind it."""
    verdicts = [
        judge(claim, evidence) for claim in CLAIMS[paper] if claim.basis in WITHOUT_RUNS and claim.formula
    ]
    assert len(verdicts) > 20
    missed = [verdict for verdict in verdicts if verdict.result is not Result.HOLDS]
    assert not [verdict.claim.id for verdict in missed if not verdict.claim.note]
    untested = [verdict for verdict in verdicts if verdict.result is Result.UNTESTED]
    assert {verdict.uncounted for verdict in untested} <= {"another quantity"}
    differ = [verdict for verdict in verdicts if verdict.heading in (ClaimHeading.PAPER, ClaimHeading.COUNT)]
    assert not [verdict.claim.id for verdict in differ if not verdict.claim.cause]
    holding = [verdict for verdict in verdicts if verdict.heading is None]
    assert not [verdict.claim.id for verdict in holding if verdict.claim.cause]


@pytest.mark.parametrize(
    ("fields", "ours", "result"),
    [
        ({}, 2, Result.HOLDS),
        ({}, 3, Result.CONTRADICTED),
        ({"value": "3.24"}, 3.2411, Result.HOLDS),
        ({"value": "3.24"}, 3.26, Result.CONTRADICTED),
        ({"tolerance": "10%"}, 2.19, Result.HOLDS),
        ({"tolerance": "10%"}, 2.5, Result.WITHIN),
        ({"tolerance": "10%"}, 4.5, Result.CONTRADICTED),
        ({"tolerance": "1%"}, 2.1, Result.CONTRADICTED),
        ({"tolerance": "10%"}, 2.2 + 1e-9, Result.WITHIN),
        ({"tolerance": "10%"}, 1.8 - 1e-9, Result.WITHIN),
        ({"tolerance": "1.5x", "comparator": "below"}, 0.1, Result.HOLDS),
        ({"tolerance": "1.5x", "comparator": "up_to"}, 0.1, Result.CONTRADICTED),
        ({"tolerance": "1.5x", "comparator": "up_to"}, 1.4, Result.HOLDS),
        ({"tolerance": "1.5x", "comparator": "at_least"}, 0.1, Result.CONTRADICTED),
        ({"tolerance": "1.5x", "comparator": "at_least"}, 90, Result.HOLDS),
        ({"tolerance": "1.5x", "value": "sqrt(P)"}, 0.325, Result.CONTRADICTED),
        ({"tolerance": "1.5x", "value": "sqrt(P)"}, 0.9, Result.HOLDS),
        ({"value": "2P"}, 1.0, Result.HOLDS),
        ({"value": "falls"}, True, Result.HOLDS),
        ({"value": "falls"}, False, Result.CONTRADICTED),
        ({"value": "(25, 10)"}, (25, 10), Result.HOLDS),
        ({"value": "(25, 10)"}, (25, 15), Result.CONTRADICTED),
    ],
)
def test_verdicts(fields: dict[str, Any], ours: Any, result: Result) -> None:
    assert compare(claim(**fields), ours).result is result


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (Estimate(2.9, 2.8, 3.0), "predicted within 1.5"),
        (Estimate(3.1, 1.9, 4.0), "off by 1.55"),
        (Estimate(0.4, 0.1, 3.0), "off by 5"),
        (Estimate(-1.0, -2.0, 3.0), "off in sign"),
        (9, "off by 4.5"),
        (True, "predicted"),
        (False, "predicted otherwise"),
        ([True, False, False], "1 of 3 predicted"),
        ([False, False], "predicted otherwise"),
    ],
)
def test_prediction_is_within_its_tolerance_or_off(ours: Any, words: str) -> None:
    """Its interval does not change the verdict, which is never that the paper is contradicted."""
    assert compare(claim(tolerance="1.5x"), ours, source="predicted").words == words


@pytest.mark.parametrize("source", get_args(Source))
@pytest.mark.parametrize("ours", [1e-9, 1.0, 2.0, 1e9, False, True, [False], [1, 2], Estimate(9, 8, 10)])
def test_only_a_value_that_is_not_predicted_contradicts(ours: Any, source: Source) -> None:
    result = compare(claim(tolerance="1.5x"), ours, source=source).result
    of_predictions = {Result.PREDICTED, Result.OFF}
    of_others = {Result.HOLDS, Result.WITHIN, Result.CONTRADICTED}
    assert result in (of_predictions if source == "predicted" else of_others) | {Result.IN_PART}


@pytest.mark.parametrize(
    ("printed", "ours", "words"),
    [
        ("4;16", [4, 16], "holds"),
        ("4;16", [4], "1 of 2 hold"),
        ("4;16", [4, 36], "1 of 3 hold"),
        ("4;16", [], "contradicted"),
        ("4;16", [36], "contradicted"),
    ],
)
def test_list_is_judged_entry_by_entry(printed: str, ours: list[int], words: str) -> None:
    assert compare(claim(value=printed), ours).words == words


RANGES: list[tuple[Estimate, str]] = [
    (Estimate(1.5, 1.0, 9.0, 2.9), "predicted within 1.5"),
    (Estimate(1.5, 1.0, 9.0, 3.1), "not comparable"),
    (Estimate(0.5, 0.1, 9.0, 8.0), "not comparable"),
    (Estimate(8.0, 6.0, 30.0, 20.0), "off by 4"),
    (Estimate(0.1, 0.1, 0.5, 0.5), "off by 4"),
    (Estimate(2.5, 2.0, 3.0, 2.5), "predicted within 1.5"),
]


@pytest.mark.parametrize(("ours", "words"), RANGES)
def test_range_over_open_settings_has_a_verdict_if_all_choices_agree(ours: Estimate, words: str) -> None:
    open_setting = claim(tolerance="1.5x", unprinted="width", choices="range", note="the width is open")
    assert compare(open_setting, ours, source="predicted").words == words
    with pytest.raises(UserError, match="our value is a range, so the claim must say what"):
        compare(claim(tolerance="1.5x"), ours, source="predicted")


@pytest.mark.parametrize("ours", [2, 2.0, 9, Estimate(2, 1, 3), True, False, [2], "2"])
@pytest.mark.parametrize("source", ["computed", "predicted"])
def test_single_value_has_no_verdict_if_a_setting_is_not_printed(ours: Any, source: Source) -> None:
    open_setting = claim(tolerance="1.5x", unprinted="width", choices="range", note="the width is open")
    assert compare(open_setting, ours, source=source).result is Result.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("values", "words", "ours"),
    [
        ((True, True), "predicted", "true"),
        ((False, False), "predicted otherwise", "false"),
        ((False, True), "not comparable", "true or false"),
        ((True,), "not comparable", "true"),
    ],
)
def test_statement_is_judged_for_each_choice_of_an_open_setting(
    values: tuple[bool, ...], words: str, ours: str
) -> None:
    open_setting = claim(value="falls", unprinted="transport", choices="range", note="the transport is open")
    verdict = compare(open_setting, Choices(values), source="predicted")
    assert (verdict.words, verdict.ours) == (words, ours)


def test_value_without_choices_is_not_computed(evidence: Evidence) -> None:
    formula = Formula(lambda _: 2.0)
    verdict = judge(claim(unprinted="unit of throughput", note="not printed", formula=formula), evidence)
    assert (verdict.result, verdict.ours) == (Result.NOT_COMPARABLE, "")


def test_range_has_no_single_value_and_keeps_its_ends_in_arithmetic() -> None:
    several = enclose([Estimate(4.0, 2.0, 8.0), Estimate(2.0, 1.0, 3.0)])
    assert several == Estimate(2.0, 1.0, 8.0, 4.0)
    assert str(several) == "2 to 4 [1 to 8]"
    with pytest.raises(ValueError, match="is a range"):
        _ = several.value
    assert 1 / several == Estimate(0.25, 1 / 8, 1.0, 0.5)
    assert several / Estimate(2.0, 2.0, 2.0) == several * 0.5 == Estimate(1.0, 0.5, 4.0, 2.0)
    assert 10 - several == Estimate(6.0, 2.0, 9.0, 8.0)
    assert average([several, Estimate(4.0, 3.0, 6.0)]) == Estimate(3.0, 2.0, 7.0, 4.0)


def test_epochs_are_divided_between_equal_choices_of_settings() -> None:
    slow = EpochTimes({("a", 128): EpochTime(6.0), ("a", 256): EpochTime(10.0)})
    assert slow / EpochTimes({(None, 128): EpochTime(2.0), (None, 256): EpochTime(5.0)}) == Estimate(
        2, 2, 3, 3
    )
    assert slow / EpochTimes({(None, None): EpochTime(2.0)}) == Estimate(3, 3, 5, 5)


def test_a_claim_that_no_formula_reaches_keeps_its_reason(evidence: Evidence) -> None:
    verdict = judge(claim(note="hardware counters"), evidence)
    assert (verdict.result, verdict.reason) == (Result.UNTESTED, "hardware counters")


def test_an_epoch_over_itself_is_one_within_what_the_model_leaves_out(evidence: Evidence) -> None:
    runs = select("plexus-figure-8", strategy="plexus", dataset="reddit")
    epochs = evidence.time_epoch(runs.narrow(ranks=4))
    alike = epochs / epochs
    assert alike.value == 1
    assert alike.high == pytest.approx(1.25)
    apart = epochs / evidence.time_epoch(runs.narrow(ranks=128))
    assert apart.high / apart.value > alike.high


def test_measured_epochs_have_no_interval() -> None:
    both = divide_epochs(EpochTime(3.0), EpochTime(2.0))
    assert (both.value, both.low, both.high) == (1.5, 1.5, 1.5)


def predicted_on(machine: str, constant: str, noise: float) -> EpochTime:
    """An epoch of one second that is proportional to one constant of a card."""
    card = load_machine_card(ROOT, machine)
    shares = dict.fromkeys(list_constants(card), 0.0) | {constant: 1.0}
    seconds = PredictedSeconds(1.0, 1.0, 1.0)
    return EpochTime(1.0, card, Prediction(0, seconds, {}, 0.0, 0.0, 0, shares, noise))


def test_ratio_of_epochs_on_two_machines_has_the_constants_of_both() -> None:
    """The card of gloo lacks links.call_us, and that of NCCL has links.peer_gbs."""
    one, other = (
        predicted_on(*each)
        for each in (("perlmutter", "links.peer_gbs", 0.1), ("perlmutter-gloo", "links.host_gbs", 0.2))
    )
    assert one.machine and one.machine.links and one.machine.links.peer_gbs
    assert other.machine and other.machine.links and other.machine.links.host_gbs
    within = one.machine.links.peer_gbs.within, other.machine.links.host_gbs.within
    variance = log(1.25) ** 2 + sum(log(factor) ** 2 for factor in within) + 0.1**2 + 0.2**2
    assert log(divide_epochs(one, other).high) == pytest.approx(sqrt(variance))
    assert log(divide_epochs(one, one).high) == pytest.approx(sqrt(log(1.25) ** 2 + 2 * 0.1**2))


def test_a_record_of_the_papers_run_counts_more_than_a_prediction(tmp_path: Path) -> None:
    experiment = load_experiment(ROOT / "workflows/experiments/plexus-figure-8.yaml")
    experiment = select_scale(ROOT, experiment, "published")
    spec = next(
        spec for spec in expand(ROOT, experiment) if spec.ranks == 8 and spec.dataset.name == "reddit"
    )
    nothing = {column.name: {TEXT: "", TRUTH: False}.get(column.dtype, 0) for column in RUNS.columns}
    known = {"run_id": spec.run_id, "status": "ok", "source": "measured", "epoch_seconds_median": 7.5}
    rows = to_arrow(pd.DataFrame([{**nothing, **known}]), RUNS)
    (tmp_path / "runs.parquet").write_bytes(serialize_table(rows, RUNS))
    runs = select("plexus-figure-8", strategy="plexus", dataset="reddit", ranks=8, launch=spec.launch)
    measured = Evidence(ROOT, tmp_path).time_epoch(runs)
    assert measured.seconds == Estimate(7.5, 7.5, 7.5)


def test_lines_fall_or_do_not() -> None:
    lasts = [EpochTimes({(): EpochTime(seconds)}) for seconds in (3.0, 2.0, 1.0)]
    assert is_falling(dict(zip((2, 4, 8), lasts, strict=True)))
    assert not is_falling(dict(zip((2, 8, 4), lasts, strict=True)))


def test_an_evaluation_is_predicted_where_none_was_measured(evidence: Evidence) -> None:
    """One forward pass, which is shorter than an epoch of Plexus; or the reason why it cannot be told."""
    table = {claim.id: claim for claim in CLAIMS["scalegnn"]}
    found = evidence.time_evaluation(
        select("scalegnn-table-2", strategy="scalegnn", dataset="reddit", ranks=4)
    )
    epoch = evidence.time_epoch(select("plexus-figure-8", strategy="plexus", dataset="reddit", ranks=4))
    assert 0 < found.seconds.low < found.seconds.least < found.seconds.largest < epoch.seconds.value
    assert judge(table["SGN-092"], evidence).ratio
    sampled = judge(table["SGN-099"], evidence)
    assert (sampled.result, sampled.ours) == (Result.NOT_COMPARABLE, ""), "its batch is not printed"


def test_the_command_prints_a_figure_and_refuses_an_unknown_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))  # claims belong to the tables of a folder
    assert main(["claims", "--figure", "plexus-tab4", "--out", str(tmp_path / "claims.parquet")]) == 0
    assert "PLX-129" in set(read_claims_table(tmp_path).id)
    out = capsys.readouterr().out
    assert "PLX-129" in out and "114848857" in out
    assert main(["claims", "--figure", "plexus-fig99"]) == 2
    assert main(["claims", "--paper", "nobody"]) == 2


@pytest.mark.long
def test_findings_are_computed_as_their_page_has_them(tmp_path: Path) -> None:
    """The tables are those of the record, and a drawing has the same bytes twice."""
    page = (ROOT / "benchmarks" / "results" / "findings.md").read_text().splitlines()
    for number in (1, 2):
        for part in ("model", "edges"):
            words = ["-m", "benchmarks", f"findings.{part}", "--out", str(tmp_path / str(number))]
            printed = subprocess.run(
                [sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True
            ).stdout
            assert len(lines := printed.splitlines()) > 3
            assert [line for line in lines if line not in page] == []
    first, second = (
        {path.name: path.read_bytes() for path in tmp_path.glob(f"{run}/*.svg")} for run in (1, 2)
    )
    assert first == second and sorted(first) == ["findings-edges.svg", "findings-model.svg"]


def test_held_out_results_are_those_of_the_recorded_draw() -> None:
    page = (ROOT / "benchmarks" / "results" / "held-out.md").read_text()
    drawn = set(re.findall(r"\b(?:CAG|G3|MBS|PLX|SGN)-\d+", page))
    marked = [
        claim for of_paper in read_claims(ROOT).values() for claim in of_paper if claim.fitted == "held out"
    ]
    assert {claim.id for claim in marked} == drawn
    assert len(drawn) == 60
    assert all(claim.basis == "prediction" for claim in marked)


def test_a_draw_is_proportional_to_the_strata_and_follows_its_seed() -> None:
    strata = {("a", "ratio"): [f"A-{i}" for i in range(10)], ("b", "ratio"): [f"B-{i}" for i in range(5)]}
    first = draw_from_strata(strata, 6, seed=1)
    assert sorted(each[0] for each in first) == list("AAAABB")
    assert draw_from_strata({key: ids[::-1] for key, ids in reversed(strata.items())}, 6, seed=1) == first
    assert any(draw_from_strata(strata, 6, seed=seed) != first for seed in range(2, 6))
    with pytest.raises(ValueError, match="16 results cannot be drawn from 15"):
        draw_from_strata(strata, 16, seed=1)
