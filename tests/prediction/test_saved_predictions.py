"""Predictions that are saved in files: read back as they were, and only while the constants of their card hold."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec, nest_settings
from harness.graph.cards.catalog import load_card
from harness.prediction.epoch import Prediction, predict
from harness.prediction.saved_predictions import SavedPredictions, read_predictions
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Ready, admit

ROOT = find_root(None)
EXPERIMENT = "an-experiment"


@pytest.fixture
def spec() -> Spec:
    request = {
        "strategy.name": "plexus",
        "dataset.name": "ogbn-products",
        "ranks": 8,
        "machine": "perlmutter",
    }
    return make_spec(ROOT, nest_settings(request), "a test")


@pytest.fixture
def predicted(spec: Spec) -> Prediction:
    facts = facts_of_card(load_card(ROOT, "ogbn-products"))
    strategy = admit(load_strategy("plexus"), spec, facts)
    return predict(Ready(strategy), load_machine_card(ROOT, "perlmutter"))


@pytest.fixture
def save(tmp_path: Path, spec: Spec) -> Callable[[SavedPredictions], SavedPredictions]:
    """Write predictions, and read them back."""

    def write_and_read(saved: SavedPredictions) -> SavedPredictions:
        saved.write(tmp_path, EXPERIMENT, [spec], ROOT, "c0ffee")
        return read_predictions(tmp_path, ROOT)

    return write_and_read


Save = Callable[[SavedPredictions], SavedPredictions]


def test_saved_prediction_is_the_prediction_of_every_launch(
    spec: Spec, predicted: Prediction, save: Save
) -> None:
    saved = SavedPredictions()
    saved.add(spec, "perlmutter", predicted)
    saved.best_grids[EXPERIMENT] = {"request": {"x": 2, "y": 2, "z": 2}}
    back = save(saved)
    assert back.best_grids == saved.best_grids
    for launch in range(2):
        found = back.find_best(spec.model_copy(update={"launch": launch}))
        assert found
        assert found.commit == "c0ffee"
        assert found.predicted == predicted


def test_old_prediction_keeps_its_commit_in_a_new_file(
    spec: Spec, predicted: Prediction, tmp_path: Path
) -> None:
    saved = SavedPredictions()
    saved.add(spec, "perlmutter", predicted)
    saved.write(tmp_path, EXPERIMENT, [spec], ROOT, "c0ffee")
    old = read_predictions(tmp_path, ROOT)
    old.add(spec, "perlmutter-measured", "for a reason")
    old.write(tmp_path, EXPERIMENT, [spec], ROOT, "bed")
    both = read_predictions(tmp_path, ROOT)
    found, new = (both.find(spec, card) for card in ("perlmutter", "perlmutter-measured"))
    assert found and new
    assert (found.commit, new.commit) == ("c0ffee", "bed")


def test_prediction_from_twins_is_preferred_and_evaluations_are_apart(
    spec: Spec, predicted: Prediction, save: Save
) -> None:
    saved = SavedPredictions()
    saved.add(spec, "perlmutter", "its sizes depend on the edges")
    saved.add(spec, "perlmutter", predicted, evaluation=True)
    refused = save(saved)
    found, evaluation = refused.find_best(spec), refused.find(spec, "perlmutter", evaluation=True)
    assert found and evaluation
    assert (found.predicted, found.refusal) == (None, "its sizes depend on the edges")
    assert evaluation.predicted == predicted
    saved.add(spec, "perlmutter", predicted, "1/64,1/32,1/16")
    from_twins = save(saved).find_best(spec)
    assert from_twins and from_twins.predicted == predicted


def test_predictions_by_other_constants_are_left_out(
    spec: Spec, predicted: Prediction, tmp_path: Path, save: Save
) -> None:
    saved = SavedPredictions()
    saved.add(spec, "perlmutter", predicted)
    saved.best_grids[EXPERIMENT] = {"request": {"x": 2, "y": 2, "z": 2}}
    save(saved)
    project = tmp_path / "project"
    shutil.copytree(ROOT / "config" / "machines", project / "config" / "machines")
    (project / "datasets" / "catalog").mkdir(parents=True)
    assert read_predictions(tmp_path, project).find_best(spec)
    card = project / "config" / "machines" / "perlmutter.yaml"
    constants = read_yaml(card, "the card")
    constants["links"]["intra_gbs"]["value"] *= 2
    card.write_text(json.dumps(constants))
    changed = read_predictions(tmp_path, project)
    assert changed.find_best(spec) is None
    assert not changed.best_grids


@pytest.mark.parametrize(
    "text", ["", "{}\n", "no JSON\n", '{"commit": "", "cards": {}, "best_grids": {}}\n[]\n']
)
def test_broken_file_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    for content in (text.encode(), gzip.compress(text.encode())):
        (tmp_path / "broken.jsonl.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"broken\.jsonl"):
            read_predictions(tmp_path, ROOT)
