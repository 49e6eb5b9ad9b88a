"""Every experiment expands at each of its scales, tiny runs are tiny, and every figure of a paper has its runs."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.base.errors import UserError
from harness.experiment.expand import expand, plan
from harness.experiment.experiment_file import Experiment, load_experiment
from harness.experiment.paper_figures import list_paper_figures
from harness.experiment.scales import select_scale
from harness.graph.cards.catalog import load_card
from harness.registry import load_strategy
from harness.report.figures.framed_tables import KINDS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "workflows/experiments").glob("*.yaml"))
FIGURES = {"plexus": 15, "cagnet": 10, "scalegnn": 11, "g3": 18, "bulk-sampling": 4}
"""The figures, the tables and the experiments in the text of each paper, counted in the papers."""


SEARCHED = "all-strategies"
"""The experiment whose grids are searched: half a minute each time."""
HERE = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem == SEARCHED else [])
    for path in PATHS
]


def published() -> list[Any]:
    """The files with the runs of a paper; a search for the best of a thousand grids takes half a minute."""
    texts = {path: path.read_text() for path in PATHS}
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if "grid: best" in text else [])
        for path, text in texts.items()
        if "\npublished:" in text
    ]


@pytest.mark.parametrize("path", HERE)
def test_every_experiment_expands_here(path: Path) -> None:
    told = yaml.safe_load(path.read_text())
    document = plan(ROOT, select_scale(ROOT, load_experiment(path), "laptop"))
    assert document["runs"]
    assert document["experiment"] == told["name"] == path.stem


@pytest.mark.parametrize("path", published())
def test_every_experiment_of_a_paper_expands(path: Path) -> None:
    """On graphs of the paper, or on twins as large, and not on the machine at hand."""
    paper = select_scale(ROOT, load_experiment(path), "published")
    assert paper.name == f"{path.stem}-published"
    specs = expand(ROOT, paper)
    assert specs
    assert not {spec.machine.name for spec in specs} & {"local", "ethernet", "cpu-cluster"}
    scales = {spec.dataset.name.partition("@")[2] for spec in specs}
    assert all(scale == "" or scale.startswith("1w") for scale in scales)


@pytest.mark.parametrize("path", HERE)
def test_every_experiment_has_tiny_runs(path: Path) -> None:
    """With the strategies and the models of its other runs, on graphs made in a moment, without a download."""
    here = load_experiment(path)
    specs, tiny = expand(ROOT, here), expand(ROOT, select_scale(ROOT, here, "tiny"))
    assert 0 < len(tiny) <= len(specs)
    assert {spec.strategy.name for spec in tiny} == {spec.strategy.name for spec in specs}
    assert {spec.model for spec in tiny} == {spec.model for spec in specs}
    assert {spec.ranks for spec in tiny} == {min(spec.ranks, 4) for spec in specs}
    assert max(spec.training.warmup + spec.training.epochs for spec in tiny) <= 3
    assert max(spec.training.batch for spec in tiny) <= 64
    assert max(spec.training.target for spec in tiny) <= 0.1
    for name in {spec.dataset.name for spec in tiny}:
        source = load_card(ROOT, name).source
        assert not source.list_files(), f"{name} is fetched"
        assert name.startswith("tiny-") or name == "directed-toy"


def test_a_tiny_run_keeps_its_grid_where_the_ranks_allow_it() -> None:
    runs = [
        {"strategy": "cagnet-1.5d", "dataset": "amazon-shape", "grid": ["1x4", "8x2"]},
        {
            "strategy": "plexus",
            "dataset": {"name": "europe-osm", "permutation": "double"},
            "ranks": 8,
            "grid": "all",
        },
        {
            "strategy": "serial",
            "dataset": ["ogbn-papers100m@1/4096", "graphsaint-amazon@1/256", "cora", "osm-shape"],
        },
    ]
    tiny = expand(ROOT, select_scale(ROOT, Experiment(name="few", runs=runs), "tiny"))
    replicated, cubes, serial = (
        [spec for spec in tiny if spec.strategy.name == run["strategy"]] for run in runs
    )
    first = load_strategy("cagnet-1.5d").grids(4)[0]
    assert [spec.grid for spec in replicated] == [{"row": 1, "col": 4}, first]
    assert [spec.grid for spec in cubes] == load_strategy("plexus").grids(4)
    assert {(spec.dataset.name, spec.dataset.permutation) for spec in cubes} == {("tiny-lattice", "double")}
    assert [spec.dataset.name for spec in serial] == [
        "directed-toy",
        "tiny-topics",
        "tiny-sbm",
        "tiny-lattice",
    ]


def test_a_paper_with_several_machines_has_a_plan_for_each() -> None:
    figure = load_experiment(ROOT / "workflows/experiments/scalegnn-figure-7.yaml")
    paper = select_scale(ROOT, figure, "published")
    counted = Counter(spec.machine.name for spec in expand(ROOT, paper))
    assert set(counted) == {"perlmutter", "frontier", "tuolumne"}
    for name, count in counted.items():
        specs = expand(ROOT, paper, only=name)
        assert {spec.machine.name for spec in specs} == {name}
        assert len(specs) == count
    with pytest.raises(UserError, match=r"summit.*frontier, perlmutter, tuolumne"):
        expand(ROOT, paper, only="summit")


def test_an_experiment_without_a_paper_says_so() -> None:
    mine = Experiment(name="mine", runs=[{"strategy": "serial", "dataset": "tiny-sbm"}])
    with pytest.raises(UserError, match=r"mine.*`published`"):
        select_scale(ROOT, mine, "published")


def test_all_grids_of_figure_5_are_the_papers() -> None:
    """28 grids of 64 devices, three axes of powers of two."""
    figure = load_experiment(ROOT / "workflows/experiments/plexus-figure-5.yaml")
    assert (
        len({tuple(spec.grid.values()) for spec in expand(ROOT, select_scale(ROOT, figure, "published"))})
        == 28
    )


def test_every_figure_of_a_paper_is_reproduced_or_has_a_reason() -> None:
    figures, drawings = list_paper_figures(ROOT), {kind.name for kind in KINDS}
    assert Counter(figure.paper for figure in figures) == FIGURES
    assert len({figure.id for figure in figures}) == 58
    for figure in figures:
        assert bool(figure.experiments) != bool(figure.reason), figure.id
        assert bool(figure.experiments) == (figure.drawing in drawings), figure.id
        assert figure.reason or not figure.command, figure.id
        assert figure.title and figure.kind and figure.x and figure.y, figure.id
    named = {name for path in PATHS for name in load_experiment(path).reproduces}
    assert named == {figure.id for figure in figures if figure.experiments}


def test_a_figure_that_no_paper_has_is_refused() -> None:
    runs = [{"strategy": "serial", "dataset": "tiny-sbm"}]
    with pytest.raises(UserError, match=r"mine: .*'plexus-fig88'.* plexus-fig8"):
        expand(ROOT, Experiment(name="mine", reproduces=("plexus-fig88",), runs=runs))


def test_experiment_of_a_figure_has_published_runs() -> None:
    for path in PATHS:
        here = load_experiment(path)
        assert bool(here.reproduces) == (here.published is not None), path.stem
