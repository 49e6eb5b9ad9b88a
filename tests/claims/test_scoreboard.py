"""Only results that can fail are counted, each once, and no result to which a constant was fitted."""

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.validation import validate
from harness.claims import Claim, ClaimFilter, Evidence, Result, judge_all, make_scoreboard, read_claims
from harness.claims.claims import TRANSCRIBED
from harness.claims.estimates import Estimate
from harness.claims.formula import Formula
from harness.claims.scoreboard import make_error_table
from harness.claims.selection import Selection
from harness.claims.units import UNITS, find_conversion
from harness.claims.verdicts import Verdict, classify_error, compare, find_fitted_card, judge
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.experiment.scales import select_scale
from harness.graph.cards.catalog import list_cards, load_card
from harness.spec.machine_card import FittedResult, list_machines, load_machine_card

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}


def change(claim: Claim, **fields: Any) -> Claim:
    return validate(Claim, {**claim.model_dump(), **fields}, "a test")


# Roles.


def test_transcribed_claim_cannot_be_a_result() -> None:
    assert not [
        claim.id for claim in CLAIMS.values() if claim.role == "result" and claim.basis in TRANSCRIBED
    ]
    with pytest.raises(UserError, match="CAG-023 is copied from the paper"):
        change(CLAIMS["CAG-023"], role="result")


def test_choices_need_something_that_is_not_printed() -> None:
    with pytest.raises(UserError, match="SGN-120 has choices, so it needs to name what is unprinted"):
        change(CLAIMS["SGN-120"], unprinted="")
    with pytest.raises(UserError, match="CAG-016 has a cause or something unprinted, so it needs a note"):
        change(CLAIMS["CAG-016"], note="")


def test_result_that_the_paper_does_not_print_says_how_it_is_derived() -> None:
    derived = {claim.id for claim in CLAIMS.values() if claim.derived}
    assert {"SGN-101", "SGN-107", "SGN-119", "CAG-010", "CAG-013"} <= derived
    assert CLAIMS["SGN-101"].printed == "about 67.8 % (21.7 / 32)"
    said = {name for name, claim in CLAIMS.items() if "does not print it" in claim.note}
    assert said <= derived


def test_open_settings_of_bns_gcn_are_the_same_in_the_figures_of_both_papers(evidence: Evidence) -> None:
    """Each has both transports, by the authors' default and by NCCL, and both ways to multiply the features."""
    for name in ("PLX-179", "G3-078"):
        formula = CLAIMS[name].formula
        assert formula
        selection = next(each for each in formula.args if "bns-gcn" in str(each))
        assert isinstance(selection, Selection)
        engines = {evidence.load_machine(card).engine for card in selection.cards}
        assert engines == {"nccl", "gloo"}
        assert evidence.list_values(selection, "precompute") == [False, True]
    open_claims = [claim for claim in CLAIMS.values() if "BNS-GCN" in claim.unprinted]
    assert {claim.id.split("-")[0] for claim in open_claims} == {"PLX", "G3"}
    assert {(claim.unprinted, claim.choices) for claim in open_claims} == {
        ("transport and precomputation of BNS-GCN", "range")
    }


def test_formula_of_a_result_on_several_graphs_names_each() -> None:
    several = [
        claim
        for claim in CLAIMS.values()
        if claim.is_counted and claim.is_comparable and claim.basis in ("prediction", "run")
        if ";" in claim.dataset and claim.formula
    ]
    assert len(several) > 3
    for claim in several:
        unnamed = [graph for graph in claim.dataset.split(";") if graph not in str(claim.formula)]
        assert unnamed == [], claim.id


def test_settings_and_facts_never_reach_the_scoreboard(evidence: Evidence) -> None:
    table_4 = judge_all(ROOT, evidence, ClaimFilter(figures=("plexus-tab4",)))["plexus"]
    assert len(table_4) > 30
    assert {verdict.uncounted for verdict in table_4} == {"fact", "setting"}
    assert make_scoreboard(table_4)[-1] == ("all", *["0"] * (len(Result) + 1))


def test_scoreboard_has_each_counted_result_once() -> None:
    verdicts = [Verdict(claim, Result.HOLDS, source="counted") for claim in CLAIMS.values()]
    counted = sum(claim.is_counted for claim in CLAIMS.values())
    assert 200 < counted < sum(claim.role == "result" for claim in CLAIMS.values()) < 300
    assert make_scoreboard(verdicts)[-1] == ("all", str(counted), *["0"] * (len(Result) - 1), str(counted))


def test_duplicates_name_results_of_their_own() -> None:
    for claim in CLAIMS.values():
        for name in filter(None, claim.duplicate_of.split(";")):
            assert CLAIMS[name].role == "result" and not CLAIMS[name].duplicate_of, claim.id


def test_equal_numbers_of_equal_quantities_are_counted_once() -> None:
    """One printed number of one quantity, system, baseline, graph and number of devices is one result."""
    keys = Counter(
        (
            claim.metric,
            claim.value,
            claim.system,
            claim.baseline,
            claim.dataset,
            claim.devices,
            claim.config,
            claim.machine,
        )
        for claim in CLAIMS.values()
        if claim.is_counted and claim.number is not None
    )
    assert [key for key, count in keys.items() if count > 1] == []


# Units.


def test_every_value_in_a_unit_of_size_time_rate_or_share_declares_its_own() -> None:
    statements = {"PLX-173", "CAG-053"}
    wrong = [
        claim.id
        for claim in CLAIMS.values()
        if claim.formula and claim.unit in UNITS and claim.id not in statements
        if not (unit := claim.formula.unit) or UNITS[unit].dimension != UNITS[claim.unit].dimension
    ]
    assert wrong == []


def test_values_are_converted_to_the_unit_that_the_paper_prints(evidence: Evidence) -> None:
    formula = Formula(lambda _: Estimate(4.0, 3.0, 5.0), unit="s")
    verdict = judge(change(CLAIMS["SGN-120"], unprinted="", choices="", formula=formula), evidence)
    assert verdict.ratio and verdict.ratio.value == pytest.approx(4000 / 4095)
    assert verdict.ours == "4,000 [3,000 to 5,000]"


def test_decimal_and_binary_gigabytes_are_distinguished(evidence: Evidence) -> None:
    assert find_conversion("GiB", "GB", "X") == pytest.approx(1.073741824)
    ratio = judge(CLAIMS["SGN-033"], evidence).ratio
    assert ratio and ratio.value == pytest.approx(93.1 * 1.073741824 / 100)
    assert judge(CLAIMS["G3-044"], evidence).result is Result.HOLDS  # 1.16 GB of 2^30 bytes are 10 Gbit


def test_values_of_other_dimensions_are_refused() -> None:
    with pytest.raises(UserError, match="SGN-120: a value in GiB cannot be compared with one in ms"):
        compare(CLAIMS["SGN-120"], 4.0, "GiB")
    with pytest.raises(UserError, match="a value in no unit cannot be compared with one in ms"):
        compare(CLAIMS["SGN-120"], 4.0)


# Verdicts that can fail.


def test_share_of_a_tolerance_is_a_share_of_the_printed_number(evidence: Evidence) -> None:
    """22.15 ms miss the printed 20.1 ms by 10.2 %."""
    verdict = judge(CLAIMS["PLX-086"], evidence)
    assert (verdict.ours, verdict.result) == ("22.15", Result.WITHIN)


def test_no_verdict_rests_on_the_existence_of_a_test(evidence: Evidence) -> None:
    for name in ("PLX-170", "CAG-037", "SGN-005", "SGN-006", "SGN-007", "SGN-011"):
        verdict = judge(CLAIMS[name], evidence)
        assert verdict.result is Result.UNTESTED and verdict.reason, name


def test_value_of_another_quantity_is_shown_without_a_verdict(evidence: Evidence) -> None:
    verdict = judge(CLAIMS["CAG-018"], evidence)
    assert (verdict.ours, verdict.result) == ("2.25", Result.UNTESTED)
    assert verdict.reason.startswith("another quantity: ")


@pytest.mark.parametrize(
    ("ratio", "error"),
    [
        (1.25, "within 1.25"),
        (0.8, "within 1.25"),
        (0.7, "within 1.5"),
        (2.0, "within 2"),
        (0.5, "within 2"),
        (2.01, "beyond 2"),
        (-1.0, "beyond 2"),
        (0.0, "beyond 2"),
    ],
)
def test_error_class_is_the_factor_in_either_direction(ratio: float, error: str) -> None:
    assert classify_error(ratio) == error


def test_errors_of_predictions_are_counted_with_the_widths_of_intervals() -> None:
    def predict(name: str, ratio: float, spread: float, result: Result) -> Verdict:
        return Verdict(
            CLAIMS[name], result, "", Estimate(ratio, ratio / spread, ratio * spread), "", "predicted"
        )

    rows = make_error_table(
        [
            predict("SGN-100", 1.2, 2, Result.PREDICTED),
            predict("SGN-120", 0.25, 3, Result.OFF),
            predict("SGN-121", 0.25, 3, Result.NOT_COMPARABLE),
            predict("PLX-003", 1.0, 1.5, Result.FITTED),
            predict("PLX-187", 1.0, 9, Result.PREDICTED),  # a duplicate
        ]
    )
    assert rows[1:] == [
        ("tested", "2", "1", "0", "0", "1", "2.60", "6.50"),
        ("of these held out", "1", "1", "0", "0", "0", "1.20", "4.00"),
        ("fitted", "1", "1", "0", "0", "0", "1.00", "2.25"),
    ]


# Fits.


def test_result_that_supplied_a_constant_does_not_count(evidence: Evidence) -> None:
    fitted = {name for name, claim in CLAIMS.items() if find_fitted_card(claim, evidence)}
    assert fitted == {"PLX-190", "PLX-191", "PLX-199"}
    claim = change(CLAIMS["PLX-199"], formula=Formula(lambda _: True))
    assert judge(claim, evidence).result is Result.FITTED
    with pytest.raises(UserError, match=r"PLX-199 is held out, but a constant of the card .* fitted"):
        judge(change(claim, fitted="held out"), evidence)


def test_fitted_figure_marks_the_results_of_its_system(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PLX-174 is a result of Plexus alone. The others are settings, or compare it with another system."""
    supplied = [FittedResult(figure="plexus-fig8a", system="plexus")]
    monkeypatch.setattr(evidence, "fitted_results", {"perlmutter": supplied})
    of_figure = [claim for claim in CLAIMS.values() if claim.figure == "plexus-fig8a"]
    assert len(of_figure) > 5
    assert [claim.id for claim in of_figure if find_fitted_card(claim, evidence)] == ["PLX-174"]


def test_cards_name_the_results_that_their_sources_name() -> None:
    """A source that names a result of a paper, or the points of a figure, has it in `fitted_to`."""
    figures = {
        FittedResult(figure=f"plexus-{name}", system="plexus")
        for name in ("fig8a", "fig8b", "fig8c", "fig10-left")
    }
    for name in list_machines(ROOT):
        card = load_machine_card(ROOT, name)
        sources = re.findall(r"source='([^']*)'|source=\"([^\"]*)\"", f"{card.rates} {card.links}")
        text = " ".join("".join(pair) for pair in sources)
        results = {each for each in re.findall(r"[A-Z0-9]{2,3}-\d{3}", text) if CLAIMS[each].role == "result"}
        assert results <= {each.claim for each in card.fitted_to}, name
        if "plexus_spmm_points" in text or "scaling points" in text:
            assert figures <= set(card.fitted_to), name
        if "Frontier's" in text:
            assert FittedResult(claim="PLX-199") in card.fitted_to, name


def test_claim_on_parts_waits_for_twins_to_be_allowed(evidence: Evidence) -> None:
    verdict = judge(CLAIMS["PLX-190"], evidence)
    assert verdict.result is Result.UNTESTED
    assert "harness claims --twins" in verdict.reason


def test_dataset_cards_name_the_results_whose_cut_they_have() -> None:
    """A twin that was fitted to a printed cut cannot test it, nor may the cut be held out."""
    for name in list_cards(ROOT):
        if communities := load_card(ROOT, name).communities:
            sources = " ".join(each.source for each in communities.published)
            named = set(re.findall(r"\b[A-Z0-9]{2,3}-\d{3}\b", sources))
            assert named == set(communities.fitted_to), name
            assert all(CLAIMS[claim].fitted != "held out" for claim in named)


def test_published_epochs_are_runs_of_the_figures_that_a_fit_on_them_must_name() -> None:
    with (ROOT / "benchmarks" / "data" / "plexus_spmm_points.csv").open() as file:
        points = {
            (row["dataset"].replace("_", "-"), int(row["gpus"]))
            for row in csv.DictReader(file)
            if row["set"] == "scaling"
        }
    runs = set()
    for figure in ("plexus-figure-8", "plexus-figure-10"):
        experiment = load_experiment(ROOT / "workflows" / "experiments" / f"{figure}.yaml")
        specs = expand(ROOT, select_scale(ROOT, experiment, "published"), any_grid=True)
        runs |= {(spec.dataset.name, spec.ranks) for spec in specs if spec.strategy.name == "plexus"}
    assert len(points) == 40 and points <= runs
