"""A strategy refuses what it cannot train or replay, and names the setting to change."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.cli.commands.request import parse_settings
from harness.experiment.requests import nest_settings
from harness.prediction.replay import replay
from harness.registry import load_strategy
from harness.spec.spec import Spec
from harness.strategy import Facts, Strategy, admit

FACTS = Facts(4096, 63_986, 64, 8, directed=False, labelled=4096, training=1024, exact=False)
KEPT = "strategy.params.weight_gradient=T model.order=combine_first"
GRAPH = "machine.device=cuda machine.engine=nccl training.cuda_graph=true training.warmup=2"


def ask(name: str, grid: str, settings: str = "", **facts: Any) -> Strategy:
    """Admit a run on a grid, with settings as `--set` takes them."""
    strategy = load_strategy(name)
    sizes = dict(zip(strategy.axes, map(int, grid.split("x")), strict=True))
    asked = {
        "strategy.name": name,
        "dataset.name": "any",
        "machine.name": "any",
        "ranks": prod(sizes.values()),
        "grid": sizes,
        "model.layers": 2,
        "model.hidden": 16,
        "training.batch": 64 if strategy.mini_batches else 0,
    }
    spec = Spec.model_validate(nest_settings(asked | parse_settings(settings.split())))
    return admit(strategy, spec, replace(FACTS, **facts))


@pytest.mark.parametrize(
    ("name", "grid", "settings", "said"),
    [
        ("serial", "1", "training.batch=5", ["training.batch = 5", "0"]),
        ("serial", "1", "model.layers=1 training.recompute=true", ["training.recompute"]),
        ("cagnet-1d", "5000", "", ["5000 ranks", "4096 vertices"]),
        ("cagnet-1d", "1", "model.kind=gat", ["gat", "model.kind"]),
        ("cagnet-1d", "2", "strategy.params.moves=all_gather strategy.params.overlap=true", ["overlap"]),
        ("cagnet-2d", "1x2", "strategy.params.moves=all_gather strategy.params.block=9", ["block"]),
        ("cagnet-2d", "1x2", "strategy.params.block=0", ["block"]),
        ("cagnet-2d", "1x9", "", ["9 grid columns", "at most 8"]),
        ("cagnet-3d", "1x9x1", "", ["9 grid columns", "at most 8"]),
        ("cagnet-1d", "4", KEPT, ["weight_gradient S", "aggregate_first"]),
        ("cagnet-1.5d", "2x2", KEPT, ["weight_gradient S", "aggregate_first"]),
        ("cagnet-2d", "2x2", KEPT, ["weight_gradient S", "aggregate_first"]),
        ("cagnet-3d", "2x2x1", KEPT, ["weight_gradient S", "aggregate_first"]),
        ("cagnet-sa-1d", "4", KEPT, ["weight_gradient S", "aggregate_first"]),
        ("plexus", "1x1x1", "model.kind=gat", ["gat", "model.kind"]),
        ("plexus", "2x2x2", "model.order=combine_first", ["model.order=aggregate_first"]),
        ("plexus", "2x2x2", "dataset.permutation=double strategy.params.loops=apart", ["single", "in_A"]),
        ("plexus", "2x2x2", "dataset.permutation=double model.kind=sage", ["permutation", "single or none"]),
        ("plexus", "2x2x2", "training.features=true model.kind=sage", ["training.features", "gcn"]),
        (
            "plexus",
            "2x2x2",
            "training.features=true model.projection=true",
            ["training.features", "projection"],
        ),
        ("scalegnn", "1x1x1x1", "training.batch=0", ["training.batch = 0", "4096"]),
        ("scalegnn", "1x1x1x1", "training.batch=4097", ["training.batch = 4097", "4096"]),
        ("scalegnn", "1x1x1x1", "training.features=true", ["training.features"]),
        ("scalegnn", "1x1x1x1", "model.kind=gat", ["gat", "model.kind"]),
        ("scalegnn", "1x1x1x1", "model.order=combine_first", ["model.order=aggregate_first"]),
        ("scalegnn", "1x1x1x1", "dataset.permutation=double", ["permutation", "single or none"]),
        ("rdm", "1x5000", "", ["5000 ranks", "4096 vertices"]),
        ("g3", "4", "model.projection=true", ["model.projection"]),
        ("g3", "4", "training.features=true", ["features", "bns-gcn"]),
        ("distgnn", "2", "training.features=true", ["training.features"]),
        ("distdgl", "2", "strategy.params.fanouts=[3,0]", ["fanouts"]),
        ("bulk-sage", "1x1", "strategy.params.fanouts=[0]", ["fanouts"]),
        ("bulk-sage", "1x1", "strategy.params.fanouts=[5,4096]", ["fanouts"]),
        ("bulk-sage", "1x1", "strategy.params.fanouts=[]", ["fanouts"]),
        ("bulk-ladies", "1x1", "strategy.params.size=65536", ["size"]),
        ("bulk-ladies", "1x1", "model.kind=gat", ["gat", "model.kind"]),
        ("graphsaint-node", "1", "model.kind=sage", ["sage", "model.kind"]),
        ("pipegcn", "2", GRAPH, ["training.cuda_graph"]),
        ("sancus", "2", GRAPH, ["training.cuda_graph"]),
        ("adaqp", "2", GRAPH, ["training.cuda_graph"]),
        ("bns-gcn", "2", f"{GRAPH} strategy.params.p=0.5", ["training.cuda_graph"]),
        ("distgnn", "2", f"{GRAPH} strategy.params.delay=3", ["training.cuda_graph"]),
        ("g3", "2", f"{GRAPH} strategy.params.bins_on=host", ["training.cuda_graph"]),
        ("distdgl", "2", GRAPH, ["training.cuda_graph"]),
        ("scalegnn", "2x1x1x1", GRAPH, ["training.cuda_graph"]),
        ("cagnet-1d", "2", f"{GRAPH} machine.device=cpu machine.engine=gloo", ["cpu", "gloo"]),
        ("cagnet-1d", "2", f"{GRAPH} training.warmup=1", ["training.warmup = 1", "2"]),
        ("cagnet-1d", "2", f"{GRAPH} measure.tape=true", ["measure.tape", "training.cuda_graph"]),
    ],
)
def test_run_that_is_impossible_is_refused(name: str, grid: str, settings: str, said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        ask(name, grid, settings)
    assert all(word in str(refusal.value) for word in said), refusal.value


def test_partition_is_refused_where_rows_and_columns_are_cut_alike() -> None:
    with pytest.raises(UserError, match=r"dataset\.partition=block"):
        ask("plexus", "1x2x1", "dataset.partition=metis dataset.parts=2", bounds=(0, 2048, 4096))


@pytest.mark.parametrize("weights", ["normalised", "raw"])
@pytest.mark.parametrize(
    ("name", "grid", "settings"),
    [
        ("serial", "1", "model.kind=gat"),
        ("serial", "1", "model.kind=sage"),
        ("cluster-gcn", "1", ""),
        ("graphsaint-node", "1", ""),
        ("bulk-ladies", "1x1", ""),
    ],
)
def test_weights_of_edges_that_would_be_lost_are_refused(
    name: str, grid: str, settings: str, weights: str
) -> None:
    ask(name, grid, settings)
    with pytest.raises(UserError, match="--weights"):
        ask(name, grid, settings, weights=weights)


@pytest.mark.parametrize(
    ("name", "grid", "settings"),
    [
        ("salient", "3", ""),
        ("massivegnn", "3", ""),
        ("quiver", "3", ""),
        ("neutronstar", "3", ""),
        ("distgnn", "3", ""),
        ("bulk-sage", "2x2", "strategy.params.graph=partitioned"),
    ],
)
def test_replay_that_needs_edges_is_refused_until_the_graph_is_built(
    name: str, grid: str, settings: str
) -> None:
    with pytest.raises(UserError, match=r"(?i)build"):
        replay(ask(name, grid, settings))
