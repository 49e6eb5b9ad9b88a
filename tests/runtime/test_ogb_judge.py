"""Runs on OGB's datasets record the scores of OGB's Evaluator, whatever layout the output has."""

import gzip
import importlib
import json
import sys
import zipfile
from math import isnan, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from harness.cli import main
from harness.comm.grid import Grid
from harness.graph.model import SPLITS
from harness.ledger import Ledger
from harness.runtime import ogb_judge
from harness.runtime.ogb_judge import OgbJudge, load_evaluator
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec
from harness.strategy.models import Predictions
from tests.cases import DOUBLE, make_case

pytestmark = pytest.mark.long

Gathered = dict[str, tuple[torch.Tensor, torch.Tensor]]
GRIDS: list[tuple[str, dict[str, int]]] = [
    ("cagnet-1d", {"p": 3}),
    ("cagnet-1.5d", {"row": 2, "col": 2}),
    ("cagnet-2d", {"row": 2, "col": 2}),
    ("plexus", {"x": 2, "y": 2, "z": 1}),
    ("scalegnn", {"d": 1, "x": 2, "y": 1, "z": 2}),
    ("graphsage", {"d": 2}),
    ("distdgl", {"p": 3}),
]


def gather(name: str, grid: dict[str, int], task: Any) -> Gathered:
    """Gather the predictions of the initial model; classes are fewer than ranks on some axes."""
    batch = {"training": {"batch": 16}} if name in ("scalegnn", "graphsage", "distdgl") else {}
    case = make_case(name, grid, vertices=97, task=task, **DOUBLE, **batch)
    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
    with torch.no_grad():
        found = trainer.operators.gather_predictions(trainer.output())  # type: ignore[attr-defined]
    trainer.ctx.grid.drain()
    return {split: tuple(both) for split, both in found.items()}


def sort_rows(both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return labels and predictions side by side, in an order that does not depend on the ranks."""
    rows = torch.cat([both[0].double(), both[1].double()], dim=1)
    return torch.stack(sorted(rows, key=lambda row: row.round(decimals=6).tolist()))


@pytest.mark.parametrize(("name", "grid"), GRIDS, ids=[name for name, _ in GRIDS])
@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_every_layout_gathers_the_predictions_of_serial(
    ranks: Any, name: str, grid: dict[str, int], task: str
) -> None:
    expected = gather("serial", {"p": 1}, task)
    assert expected.keys() == SPLITS.keys()
    first = ranks(prod(grid.values()), gather, name, grid, task)[0]
    for split, both in expected.items():
        torch.testing.assert_close(sort_rows(first[split]), sort_rows(both), rtol=1e-9, atol=1e-12)


def test_evaluator_is_ogbs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outdated", None)
    theirs = importlib.import_module("ogb.nodeproppred").Evaluator(name="ogbn-proteins")
    generator = np.random.default_rng(3)
    given = {"y_true": generator.integers(0, 2, (50, 112)), "y_pred": generator.normal(size=(50, 112))}
    assert load_evaluator("ogbn-proteins").eval(given) == theirs.eval(given)


N, EDGES, TASKS = 90, 400, 112


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a graph of the shape of ogbn-proteins: 112 tasks, no features, splits by species."""
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    generator = np.random.default_rng(5)

    def text(rows: Any) -> bytes:
        return gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode(), mtime=0)

    labels = generator.integers(0, 2, (N, TASKS))
    labels[60:, 7] = 0  # a task without a positive test vertex: OGB leaves it out
    members = {
        "raw/edge": text(generator.integers(0, N, (EDGES, 2)).tolist()),
        "raw/node-label": text(labels.tolist()),
        "raw/num-node-list": text([[N]]),
        "raw/num-edge-list": text([[EDGES]]),
        "split/species/train": text([v] for v in range(30)),
        "split/species/valid": text([v] for v in range(30, 60)),
        "split/species/test": text([v] for v in range(60, N)),
    }
    archive = tmp_path / "datasets" / "raw" / "ogb" / "proteins.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as packed:
        for name, content in members.items():
            packed.writestr(f"proteins/{name}.csv.gz", content)
    card = {
        "source": {"kind": "ogb", "name": "ogbn-proteins"},
        "task": "multi-label",
        "classes": TASKS,
        "features": {"kind": "uniform", "width": 8},
        "labels": {"kind": "file"},
        "split": {"kind": "file"},
    }
    for folder in ("datasets/catalog", "config/machines"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "datasets" / "catalog" / "proteins.yaml").write_text(yaml.safe_dump(card))
    (tmp_path / "config" / "machines" / "test.yaml").write_text("description: a test\n")
    return tmp_path


@pytest.mark.usefixtures("ranks_at_hand")
def test_run_records_the_roc_auc_of_ogb(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "build", "proteins"]) == 0
    settings = [
        "--set",
        "machine=test",
        "--set",
        "training.epochs=3",
        "--set",
        "precision=float64",
        "--set",
        "training.warmup=0",
    ]
    words = ["run", "--strategy", "cagnet-2d", "--grid", "2x2", "--dataset", "proteins"]
    assert main([*words, "--ranks", "4", *settings, "--out", str(root / "runs")]) == 0
    (record,) = (json.loads(path.read_text()) for path in (root / "runs").glob("*/record.json"))
    (spec,) = (json.loads(path.read_text()) for path in (root / "runs").glob("*/spec.json"))
    assert record["summary"]["accuracy_by"] == "ogb rocauc"
    serial = {**spec, "strategy": {"name": "serial"}, "grid": {"p": 1}, "ranks": 1}
    strategy, blocks = open_run(root, Spec.model_validate(serial))
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), blocks)
    for _ in range(3):
        trainer.epoch()
    monkeypatch.setitem(sys.modules, "outdated", None)
    evaluator = importlib.import_module("ogb.nodeproppred").Evaluator(name="ogbn-proteins")
    labels, split, scores = blocks.labels(range(N)), blocks.split(range(N)), trainer.output()
    for name, value in SPLITS.items():
        of = split == value
        theirs = evaluator.eval({"y_true": labels[of].numpy(), "y_pred": scores[of].numpy()})["rocauc"]
        assert record["summary"][f"accuracy_{name}"] == pytest.approx(theirs, rel=1e-12)


def make_serial_trainer() -> tuple[Trainer, Grid]:
    case = make_case("serial", {"p": 1})
    strategy = case.strategy()
    grid = Grid.build(strategy.grid, Ledger())
    return Trainer(strategy, grid, case.store()), grid


def test_undefined_score_is_nan_and_other_datasets_have_no_judge(root: Path) -> None:
    trainer, grid = make_serial_trainer()
    judge = OgbJudge(grid.world, "rocauc", load_evaluator("ogbn-proteins"))
    assert isnan(judge.score(None))
    labels = torch.arange(224).reshape(2, 112) % 2
    assert isnan(judge.score(Predictions(labels, torch.ones(2, 112))))  # each task has labels of one kind
    labels[0] = 1 - labels[1]
    assert judge.score(Predictions(labels, torch.ones(2, 112))) == 0.5
    assert isnan(judge.score(Predictions(labels, torch.full((2, 112), torch.inf))))
    operators = trainer.operators
    assert ogb_judge.open_judge(root, "proteins", operators, grid.world) is not None
    assert ogb_judge.open_judge(root, "proteins", object(), grid.world) is None  # type: ignore[arg-type]
    for source in ("{kind: rmat, scale: 4}", "{kind: ogb, name: ogbn-arxiv}"):
        (root / "datasets" / "catalog" / "drawn.yaml").write_text(
            f"source: {source}\nclasses: 2\nfeatures: {{kind: uniform, width: 2}}\n"
            "labels: {kind: degree}\nsplit: {kind: all}\n"
        )
        assert ogb_judge.open_judge(root, "drawn", operators, grid.world) is None


def test_missing_package_leaves_the_harness_to_judge(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ogb_judge, "find_spec", lambda _: None)
    trainer, grid = make_serial_trainer()
    assert ogb_judge.open_judge(root, "proteins", trainer.operators, grid.world) is None
