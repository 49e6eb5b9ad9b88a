"""What is known of a dataset before and after its store is built, and what its partition costs."""

import json

import pytest

from harness.graph.builders.resources import BuildResources
from harness.graph.model import SPLITS
from harness.graph.partitions.partition import count_needed_rows
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.graph_import import ImportRequest, import_graph
from harness.graph.store.info import describe_dataset
from harness.spec.dataset import DatasetChoice

PLAIN = DatasetChoice(name="toy")
PARTS = DatasetChoice(name="toy", partition="random", parts=4)


def test_facts_of_a_built_graph_are_counted(root):
    before = describe_dataset(root, PLAIN)
    assert not before.built
    assert before.build == [], "a small generated graph is made in memory"
    build_store(root, PLAIN)
    build_store(root, PARTS)
    after = describe_dataset(root, PLAIN)
    store = open_dataset(root, PLAIN)
    A = store.adjacency(range(53), range(53))
    neighbours = A.rowptr.diff() - 1
    for known in (before, after):
        assert known.counted
        assert (known.vertices, known.edges, known.nonzeros) == (53, (store.nnz - 53) // 2, store.nnz)
        assert known.mean_degree == pytest.approx(neighbours.double().mean())
        assert known.max_degree == neighbours.max()
        assert (known.features, known.classes, known.class_names) == (7, 3, None)
        split = store.split(range(53))
        assert known.split == {name: (split == value).sum() for name, value in SPLITS.items()}
        assert known.cut is None
    assert after.built
    assert after.counts == store.manifest.counts
    assert {each.order for each in after.stores} == {"original order", "partition random of 4 parts"}
    assert {each.folder for each in after.stores} == {after.folder, describe_dataset(root, PARTS).folder}
    assert all(each.bytes > 1000 for each in after.stores)
    assert describe_dataset(root, DatasetChoice(name="toy", permutation="double", seed=3)).counted


def test_facts_of_an_unbuilt_graph_are_expected_and_name_the_build(root, write_card):
    expected = {"n": 2_000_000, "nnz_sym": 9_000_000}
    write_card(
        root, "large", source={"kind": "rmat", "scale": 30}, labels={"kind": "degree"}, expected=expected
    )
    known = describe_dataset(root, DatasetChoice(name="large"))
    assert not known.counted
    assert (known.vertices, known.edges, known.nonzeros) == (2_000_000, 4_500_000, 11_000_000)
    assert known.mean_degree == 4.5
    assert known.build == ["harness data build large"]
    document = known.to_document()
    assert json.loads(json.dumps(document)) == document
    assert None not in document.values()


def test_store_of_an_older_card_is_not_listed(root, write_card):
    build_store(root, PLAIN)
    write_card(root, "toy", seed=5)
    assert describe_dataset(root, PLAIN).stores == []


def test_names_of_classes_are_facts(root, tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    (tmp_path / "y.csv").write_text("dog\ncat\ndog\n")
    (tmp_path / "split.csv").write_text("train\ntest\nnone\n")
    files = {"edges": "edges.csv", "labels": "y.csv", "split": "split.csv"}
    given = {key: tmp_path / name for key, name in files.items()}
    import_graph(root, ImportRequest(name="mine", **given), DatasetChoice(name="mine"), BuildResources())
    known = describe_dataset(root, DatasetChoice(name="mine"))
    assert known.class_names == ["cat", "dog"]
    facts = dict(known.list_facts())
    assert facts["classes"] == "2: cat, dog"
    assert known.split == {"train": 1, "valid": 0, "test": 1, "none": 1}
    assert facts["source"] == f"edges, {tmp_path / 'edges.csv'}"


def test_communication_between_parts_is_reported(root):
    """53 vertices in random quarters: 14, 14, 14 and 11."""
    build_store(root, PARTS)
    cut = describe_dataset(root, PARTS).cut
    store = open_dataset(root, PARTS)
    needed = count_needed_rows(store.adjacency(range(53), range(53)), store.bounds)
    assert cut["vertices"] == {"fewest": 11, "most": 14}
    assert cut["rows_needed"] == {
        "total": sum(needed),
        "most": max(needed),
        "fewest_over_most": min(needed) / max(needed),
    }
    assert [part["rows_needed"] for part in cut["parts"]] == needed
    assert cut["nonzeros"]["mean"] == pytest.approx(store.nnz / 4)
