"""Generated features, labels and splits are named where a graph is imported, described and trained on."""

import json

import numpy as np
import pytest

from harness.cli import main
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.store.info import WEIGHTS

EVERYTHING = "random features, labels by degree, a random split"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "edges.csv").write_text("".join(f"{v},{(v + 1) % 40}\n" for v in range(40)))
    np.save(tmp_path / "x.npy", np.ones((40, 3), np.float32))
    np.save(tmp_path / "y.npy", np.arange(40) % 2)
    np.save(tmp_path / "split.npy", np.arange(40) % 3 + 1)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "generated"),
    [
        ([], EVERYTHING),
        (["labels"], "random features, a random split"),
        (["features", "labels"], "a random split"),
        (["features", "labels", "split"], ""),
    ],
)
def test_import_and_info_name_generated_data(root, files, given, generated, capsys) -> None:
    names = {"features": "x.npy", "labels": "y.npy", "split": "split.npy"}
    options = [word for option in given for word in (f"--{option}", str(files / names[option]))]
    command = ["data", "import", "mine", "--edges", str(files / "edges.csv"), *options, "--root", str(root)]
    for words in (command, ["data", "info", "mine", "--root", str(root)]):
        assert main(words) == 0
        lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
        assert [value for name, value in lines if name == "generated"] == ([generated] if generated else [])
        assert any(name == "weights" and value.startswith(WEIGHTS[None]) for name, value in lines)
        assert main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out).get("generated_data", "") == generated


REAL = {"features": {"kind": "file"}, "labels": {"kind": "planted"}, "split": {"kind": "all"}}
SETTINGS = {"uniform": {"width": 1}, "gaussian": {"width": 1}, "random": {"train": 0.5}}


@pytest.mark.parametrize("part", REAL)
def test_every_recipe_that_draws_is_named(part, make_card) -> None:
    """A recipe that is neither read from a file nor named would be taken for real data."""
    for recipe in DatasetCard.model_fields[part].annotation.__args__:
        (kind,) = recipe.model_fields["kind"].annotation.__args__
        given = {"kind": kind, **(SETTINGS.get(kind, {}) if part != "labels" else {})}
        described = make_card(**{**REAL, part: given}).describe_generated_data()
        assert bool(described) == (kind not in {"file", "planted", "all"}), (part, kind)


@pytest.mark.long
def test_run_names_generated_data_of_a_real_graph_only(files, tmp_path, capsys, ranks_at_hand) -> None:
    root = tmp_path / "project"
    assert main(["new", "project", str(root)]) == 0
    assert main(["data", "import", "mine", "--edges", str(files / "edges.csv"), "--root", str(root)]) == 0
    for dataset, told in (("mine", f"{EVERYTHING}; the accuracy depends on them"), ("tiny-sbm", None)):
        options = ["--set", "training.epochs=1", "--root", str(root)]
        assert main(["run", "--strategy", "serial", "--dataset", dataset, *options]) == 0
        lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
        assert next((value for name, value in lines if name == "Generated"), None) == told
