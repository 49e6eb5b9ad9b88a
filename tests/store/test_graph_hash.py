"""The hash of a graph is the same in every order and every cut of it, in memory and on disk, and of no other graph."""

import pytest

from harness.graph.cards.catalog import load_card
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.location import find_graph_hashes
from harness.graph.store.manifest import read_manifest
from harness.graph.store.memory_store import MemoryStore
from harness.spec.dataset import DatasetChoice
from harness.strategy.facts import ShapeBlocks, facts_of

ORDERS = (
    {},
    {"permutation": "single", "seed": 3},
    {"permutation": "double", "seed": 4},
    {"partition": "random", "parts": 2},
    {"partition": "random", "parts": 4, "seed": 1},
    {"partition": "file:mine", "parts": 3},
)
FROM_FILES = {
    "source": {"kind": "edges", "path": "edges.txt"},
    "features": {"kind": "uniform", "width": 4},
    "labels": {"kind": "uniform"},
}


def write_partition(root):
    folder = root / "datasets" / "partitions"
    folder.mkdir(exist_ok=True)
    (folder / "mine").write_text("".join(f"{v % 3}\n" for v in range(53)))


def write_edges(root, text="0 1\n1 2\n2 3\n3 4\n4 5\n"):
    (root / "datasets" / "edges.txt").write_text(text)


def hash_of(root, name="toy", **order):
    return open_dataset(root, DatasetChoice(name=name, **order)).graph_hash


def test_every_order_of_a_graph_has_its_hash(root):
    write_partition(root)
    assert isinstance(open_dataset(root, DatasetChoice(name="toy")), MemoryStore)
    in_memory = {hash_of(root, **order) for order in ORDERS}
    folders = [build_store(root, DatasetChoice(name="toy", **order), side=2) for order in ORDERS]
    on_disk = {hash_of(root, **order) for order in ORDERS}
    assert in_memory == on_disk == {read_manifest(folder)[0].graph_hash for folder in folders}
    assert len(in_memory) == 1
    assert all(len(each) == 64 for each in in_memory)


def test_another_card_has_another_hash(root, write_card):
    found = [hash_of(root)]
    for changes in ({"seed": 1}, {"classes": 2}, {"features": {"kind": "gaussian", "width": 8}}):
        write_card(root, "toy", **changes)
        found.append(hash_of(root))
    write_card(root, "renamed")
    found.append(hash_of(root, "renamed"))
    assert len(set(found)) == len(found)


def test_prose_of_a_card_changes_no_hash(root, write_card):
    first = hash_of(root)
    write_card(root, "toy", description="Another description", expected={"n": 53})
    assert hash_of(root) == first


def test_another_source_file_has_another_hash(root, write_card):
    write_card(root, "mine", **FROM_FILES)
    found = []
    for text in ("0 1\n1 2\n2 3\n3 4\n4 5\n", "0 1\n1 2\n2 3\n3 4\n3 5\n"):
        write_edges(root, text)
        build_store(root, DatasetChoice(name="mine"))
        found.append(hash_of(root, "mine"))
    assert len(set(found)) == 2


@pytest.mark.parametrize(("name", "is_other"), [("partition", False), ("recipes", True), ("generator", True)])
def test_versions_of_the_code_that_makes_a_graph_are_in_its_hash(root, name, is_other):
    manifest, _ = read_manifest(build_store(root, DatasetChoice(name="toy", partition="random", parts=2)))
    origin = manifest.provenance
    changed = origin.model_copy(update={"versions": {**origin.versions, name: 99}})
    other = manifest.model_copy(update={"provenance": changed})
    assert (other.graph_hash != manifest.graph_hash) is is_other


def test_shapes_have_no_hash(root):
    assert ShapeBlocks(facts_of(open_dataset(root, DatasetChoice(name="toy")))).graph_hash == ""


def test_the_hash_of_a_generated_graph_is_known_without_building_it(root, write_card):
    large = {"kind": "sbm", "n": 1 << 20, "mean_degree": 2, "homophily": 0.5}
    write_card(root, "large", source=large)
    assert find_graph_hashes(root, load_card(root, "toy")) == {hash_of(root)}
    assert len(find_graph_hashes(root, load_card(root, "large"))) == 1
    assert not (root / "datasets" / "store").exists()


def test_the_hash_of_a_graph_from_files_is_known_by_any_of_its_stores(root, write_card):
    write_card(root, "mine", **FROM_FILES)
    write_card(root, "mine-too", **FROM_FILES)
    write_edges(root)
    assert find_graph_hashes(root, load_card(root, "mine")) == set()
    build_store(root, DatasetChoice(name="mine-too"))
    assert find_graph_hashes(root, load_card(root, "mine")) == set()
    folder = build_store(root, DatasetChoice(name="mine", permutation="double", seed=5))
    expected = {read_manifest(folder)[0].graph_hash}
    assert find_graph_hashes(root, load_card(root, "mine")) == expected
    build_store(root, DatasetChoice(name="mine"))
    assert find_graph_hashes(root, load_card(root, "mine")) == expected
    write_card(root, "mine", **FROM_FILES, seed=1)
    assert find_graph_hashes(root, load_card(root, "mine")) == set(), "these are stores of another card"
