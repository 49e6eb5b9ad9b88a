"""Draws compared with their reference sampler: mistakes are found, a bias of 5 % too, and correct draws pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.conformance.case import Case
from harness.conformance.case_list import list_cases, list_choices, make_case
from harness.conformance.samples import check_samples, choose_cases
from harness.kernels import Csr
from harness.registry import load_strategy, registered_strategies
from harness.spec.spec import StrategyChoice
from harness.strategies.halo import bns
from harness.strategies.sampling import bulk, clusters, matrices
from harness.strategies.sampling.bulk import Algorithm1
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.matrices import BatchStack
from harness.strategies.sampling.reference_samplers import NeighbourReference
from harness.strategies.sampling.sampler import DrawKey, DrawRows, NodesByImportance
from harness.strategy import DenseBatch, MiniBatch
from harness.strategy.parallel.uniform import UniformSampler


def find_case(name: str, **params: object) -> Case:
    strategy = StrategyChoice(name=name, params=params)
    return make_case(name, load_strategy(name).grids(3)[-1], "draws", strategy=strategy)


def round_to_nearest(seed: int, step: int, pair: bns.Pair, boundary: int, rate: float) -> int:
    return min(round(rate * boundary), boundary)


def draw_groups_alike(graph: WholeGraph, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
    return draw(graph.A, vertices, vertices, key._replace(group=0))


def draw_rows_alike(A: Csr, stack: BatchStack, fanout: int, keys: Tensor) -> Csr:
    alike = stack._replace(vertices=torch.zeros_like(stack.vertices))
    return matrices.draw_rows(A, stack, fanout, keys, own=alike)


def weigh_by_root(
    sampler: NodesByImportance, *at: Any, draw: Callable[..., MiniBatch] = NodesByImportance.mini_batch
) -> MiniBatch:
    batch, (*_, mean) = draw(sampler, *at), sampler._prepared
    assert batch.importance is not None
    return batch._replace(importance=(mean * batch.importance).sqrt())


def add_one_to_degrees(
    A: Csr, kind: str, normalise: Callable[[Csr, str], Csr] = clusters._normalise_subgraph
) -> Csr:
    degree, normal = A.rowptr.diff().double(), normalise(A, kind)
    scale = torch.repeat_interleave(degree / (degree + 1), A.rowptr.diff())
    return normal._replace(val=normal.val * scale)


MISTAKES: dict[str, tuple[str, dict[str, Any], tuple[Any, str, Any]]] = {
    "the number of boundary rows is rounded to nearest": (
        "bns-gcn",
        {"p": 0.1},
        (bns, "sample_size", round_to_nearest),
    ),
    "B/n for (B - 1)/(n - 1)": (
        "scalegnn",
        {},
        (UniformSampler, "inclusion_probability", property(lambda self: self.size / self.vertices)),
    ),
    "all steps draw alike": (
        "scalegnn",
        {},
        (UniformSampler, "sample", lambda self, _, group, draw=UniformSampler.sample: draw(self, 0, group)),
    ),
    "a loss weighs mean/sqrt(p)": (
        "graphsaint-node",
        {},
        (NodesByImportance, "mini_batch", weigh_by_root),
    ),
    "all groups draw alike": ("graphsage", {"fanout": 2}, (WholeGraph, "sample_rows", draw_groups_alike)),
    "rows use the same random numbers": (
        "bulk-sage",
        {"fanouts": [3, 2]},
        (bulk, "draw_rows", draw_rows_alike),
    ),
    "the mass e for e^2": (
        "bulk-ladies",
        {},
        (Algorithm1, "_square_counts", lambda _, P: P),
    ),
    "degree + 1": ("cluster-gcn", {}, (clusters, "_normalise_subgraph", add_one_to_degrees)),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_what_is_drawn_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, params, change = MISTAKES[mistake]
    case = find_case(name, **params)
    monkeypatch.setattr(*change)
    finding = check_samples(case, 4000)
    assert not finding.holds
    assert " deviations, allowed are " in finding.detail


class Biased(NeighbourReference):
    """Describes entries that are 5 % larger than those that are drawn."""

    def draw_layers(self, targets: np.ndarray) -> DenseBatch:
        batch = super().draw_layers(targets)
        return batch._replace(A=[1.05 * A for A in batch.A])


def test_a_bias_of_five_percent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = find_case("graphsage", fanout=2)
    assert "a bias of 5% in a layer's entries would be found" in check_samples(case, 4000).detail
    monkeypatch.setattr(load_strategy("graphsage"), "reference_sampler", Biased)
    assert not check_samples(case, 4000).holds


def test_an_epoch_with_other_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = find_case("graphsage", fanout=2)
    monkeypatch.setattr(
        NeighbourReference, "draw_epoch", lambda self, draw=NeighbourReference.draw_epoch: 2 * draw(self)
    )
    finding = check_samples(case, 4000)
    assert not finding.holds
    assert "an epoch, steps and groups: reference 2 and 3, strategy 1 and 3" in finding.detail


@pytest.mark.parametrize("name", ["graphsaint-node", "bulk-sage", "bns-gcn"])
def test_cases_whose_draws_are_tested_have_every_parameter_and_graph(name: str) -> None:
    cases, *_ = list_cases(name, load_strategy(name), "quick", None)
    chosen = choose_cases(cases)
    assert len(chosen) <= 4
    values = {(key, str(value)) for case in chosen for key, value in case.spec.strategy.params.items()}
    listed = {(key, str(value)) for key, each in list_choices(load_strategy(name)).items() for value in each}
    assert values >= {each for each in listed if each[0] != "wire"}
    assert {case.directed for case in chosen} == {True, False}


def test_exact_strategies_draw_nothing() -> None:
    cases, *_ = list_cases("serial", load_strategy("serial"), "quick", None)
    assert choose_cases(cases) == []


def test_every_sampler_says_what_it_draws() -> None:
    """PyG's sampler is a library's."""
    samplers = [each for each in registered_strategies() if load_strategy(each.name).mini_batches]
    assert {each.name for each in samplers if not load_strategy(each.name).reference_sampler} == {"pyg"}
