"""The markers and options of a build agree with the steps that `harness data build` accepts."""

import shutil
from pathlib import Path

import pytest

from harness.experiment.workflow.graph_build import GraphBuild, find_card, read_expected_nonzeros

BUILD = GraphBuild("tiny-sbm", "none", 3, "metis", 2)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    return tmp_path


def test_wildcards_and_specs_lead_to_one_build() -> None:
    wildcards = {
        "dataset": "tiny-sbm",
        "permutation": "none",
        "seed": "3",
        "partition": "metis",
        "parts": "2",
    }
    choice = {"name": "tiny-sbm", "permutation": "none", "seed": 3, "partition": "metis", "parts": 2}
    marker = "datasets/store/.built/tiny-sbm-none-s3-metis-2"
    assert (
        GraphBuild.from_wildcards(wildcards).marker
        == GraphBuild.from_spec({"dataset": choice}).marker
        == marker
    )
    assert BUILD.options == "--permutation none --seed 3 --partition metis --parts 2"


def test_jobs_of_a_step_wait_for_all_jobs_of_the_step_before() -> None:
    shares = "datasets/store/.shares/tiny-sbm-none-s3-metis-2"
    assert BUILD.list_markers_before("order", 2) == []
    assert BUILD.list_markers_before("scatter", 2) == [f"{shares}/order-0-of-2"]
    assert BUILD.list_markers_before("settle", 2) == [f"{shares}/scatter-{n}-of-2" for n in (0, 1)]
    assert BUILD.list_last_markers(2) == [f"{shares}/features-{n}-of-2" for n in (0, 1)]
    assert BUILD.list_last_markers(1) == []
    assert BUILD._replace(partition="block").list_markers_before("scatter", 2) == []


def test_finished_build_keeps_its_number_of_jobs(project: Path) -> None:
    assert BUILD.count_past_jobs() is None
    for marker in [BUILD.marker, *BUILD.list_last_markers(3)]:
        (project / marker).parent.mkdir(parents=True, exist_ok=True)
        (project / marker).touch()
        assert BUILD.count_past_jobs() == (1 if marker == BUILD.marker else 3)


def test_partition_file_of_the_user_is_an_input() -> None:
    assert BUILD.partition_files == []
    assert BUILD._replace(partition="file:mine").partition_files == ["datasets/partitions/mine"]


def test_twin_uses_the_card_of_its_graph_and_a_share_of_its_nonzeros(project: Path) -> None:
    imported = project / "datasets" / "imported" / "big.yaml"
    imported.parent.mkdir()
    imported.write_text("expected: {nnz_adj: 1600}\n")
    assert find_card("big@1-16") == str(imported)
    assert read_expected_nonzeros("big") == 1600
    assert read_expected_nonzeros("big@1-16") == 100
    card = project / "datasets" / "catalog" / "big.yaml"
    card.write_text("expected: [wrong]\n")
    assert find_card("big") == "datasets/catalog/big.yaml"
    assert read_expected_nonzeros("big") is None


def test_jobs_of_runs_build_small_graphs_that_are_generated(project: Path) -> None:
    catalog = Path(__file__).parents[2] / "datasets" / "catalog"
    for name in ("tiny-sbm", "rmat-17", "cora"):
        shutil.copy(catalog / f"{name}.yaml", project / "datasets" / "catalog")
    assert BUILD.is_small
    assert not BUILD._replace(partition="file:mine").is_small, "the workflow waits for the user's file"
    for name in ("rmat-17", "cora", "unknown"):
        assert not BUILD._replace(dataset=name).is_small
