"""The predictions of the papers' runs: saved with their reasons, recorded for figures, and used by verdicts."""

from pathlib import Path

import pytest

from harness.claims import ClaimFilter, Evidence
from harness.claims.claims import read_claims
from harness.claims.estimates import UntestableClaim
from harness.claims.figure_runs import find_twins, list_first_launches, record_figure_runs
from harness.experiment.paper_figures import list_paper_figures
from harness.prediction.saved_predictions import SavedPredictions
from harness.results.record import read_record
from harness.spec.root import find_root

ROOT = find_root(None)
EXPERIMENT = "plexus-figure-6-left"
FIGURE = "plexus-fig6-left"


@pytest.fixture
def saved(tmp_path: Path, evidence: Evidence) -> Path:
    """The folder with one run of an experiment predicted and the others refused."""
    first, *others = list_first_launches(evidence, EXPERIMENT)
    made = SavedPredictions()
    predicted = evidence.time_epoch_of_run(first).prediction
    assert predicted
    made.add(first, first.machine.name, predicted)
    for other in others:
        made.add(other, other.machine.name, "for a reason")
    return made.write(tmp_path / "saved", EXPERIMENT, [first, *others], ROOT, "c0ffee").parent


def test_saved_predictions_of_a_figure_are_recorded_with_their_commit(saved: Path, tmp_path: Path) -> None:
    evidence = Evidence(ROOT, predictions=saved, quick=True)
    folders = record_figure_runs(evidence, ClaimFilter(figures=(FIGURE,)), tmp_path / "records")
    assert {folder.parent.name for folder in folders} == {EXPERIMENT}
    records = [
        record for record in (read_record(each).record for each in folders) if record["source"] == "predicted"
    ]
    (drawn,) = [record for record in records if record["status"] == "ok"]
    assert drawn["provenance"]["commit"] == "c0ffee"
    assert drawn["summary"]["epoch_seconds_median"] > 0
    refused = [record for record in records if record["status"] == "refused"]
    assert {record["error"]["message"] for record in refused} == {"for a reason"}
    assert len(records) == len(list_first_launches(evidence, EXPERIMENT))


def test_quick_verdicts_use_saved_predictions_and_make_no_others(saved: Path) -> None:
    evidence = Evidence(ROOT, predictions=saved, quick=True)
    first, *others = list_first_launches(evidence, EXPERIMENT)
    assert evidence.time_epoch_of_run(first).seconds > 0
    with pytest.raises(UntestableClaim, match="--quick"):
        evidence.time_epoch_of_run(others[0])


def test_twins_are_those_that_claims_name(evidence: Evidence) -> None:
    claims = [claim for some in read_claims(ROOT, "plexus").values() for claim in some]
    twins = find_twins(evidence, claims)
    assert twins["bns-gcn", "reddit"].count(",") == 2
    assert ("plexus", "reddit") not in twins


@pytest.mark.long
def test_every_published_run_of_a_figure_is_predicted_or_has_a_reason() -> None:
    """What `make papers` draws of each paper is in the repository."""
    evidence = Evidence(ROOT, predictions=ROOT / "workflows" / "predictions", quick=True)
    experiments = sorted({name for figure in list_paper_figures(ROOT) for name in figure.experiments})
    missing = [
        spec.label
        for name in experiments
        for spec in list_first_launches(evidence, name)
        if evidence.saved.find_best(spec) is None
    ]
    assert not missing


@pytest.mark.long
def test_every_experiment_of_a_figure_has_records(tmp_path: Path) -> None:
    """Also where no claim is about a single run, or the figure has no claim at all."""
    evidence = Evidence(ROOT, predictions=ROOT / "workflows" / "predictions", quick=True)
    folders = record_figure_runs(evidence, ClaimFilter(), tmp_path)
    experiments = {name for figure in list_paper_figures(ROOT) for name in figure.experiments}
    assert {folder.parent.name for folder in folders} == experiments
