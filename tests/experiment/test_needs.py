"""The needs of every strategy on a graph name no reason that a user cannot act on."""

import pytest

from harness.experiment import needs
from harness.experiment.needs import list_needs, list_refusals, tabulate_needs
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root

NAMES = ["cagnet-1d", "graphsage", "distdgl", "neutronstar", "serial"]


@pytest.fixture(autouse=True)
def few_strategies(monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path))
    points = [point for point in needs.registered_strategies() if point.name in NAMES]
    monkeypatch.setattr(needs, "registered_strategies", lambda: points)


def test_built_graph_has_needs_of_samplers_and_of_strategies_that_read_edges():
    found = list_needs(find_root(), DatasetChoice(name="tiny-sbm"), 4)
    assert [each.strategy for each in found if each.refused] == ["serial"]
    headings, *rows = tabulate_needs(found)
    assert headings == needs.HEADINGS
    assert {row[0] for row in rows} == set(NAMES) - {"serial"}
    assert list_refusals(found) == [("serial", "serial has no grid of 4 ranks.")]


def test_unbuilt_graph_has_default_batches_and_asks_to_be_built():
    refusals = dict(list_refusals(list_needs(find_root(), DatasetChoice(name="reddit"), 4)))
    assert refusals.keys() == {"serial", "distdgl", "neutronstar"}
    for name in ("distdgl", "neutronstar"):
        assert "uild the dataset" in refusals[name] or "build it" in refusals[name]
