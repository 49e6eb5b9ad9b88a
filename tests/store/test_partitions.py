"""A partitioned dataset is the same graph in another order; what was computed is kept, and used only if it fits."""

import hashlib
import json
import os
import shutil
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from harness.base.errors import RunError, UserError
from harness.graph.builders.resources import BuildResources
from harness.graph.cards.catalog import load_card
from harness.graph.partitions import partition as engines
from harness.graph.partitions import partitioners
from harness.graph.partitions.pattern import load_pattern
from harness.graph.store.building import build_store, build_stores
from harness.graph.store.contents import load_graph, open_contents
from harness.graph.store.datasets import locate_store, open_dataset, open_prepared_dataset, prepare_dataset
from harness.graph.store.location import verify_store
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.kernels.csr import to_scipy
from harness.spec.dataset import DatasetChoice

PLAIN = DatasetChoice(name="toy")
METIS = DatasetChoice(name="toy", partition="metis", parts=4, seed=1)
N = 53
EVERYONE = range(N)


@pytest.fixture
def bring(root):
    """Puts a partition file under the data folder."""

    def write(name, part):
        path = root / "datasets" / "partitions" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{each}\n" for each in part))
        return path

    return write


@pytest.fixture
def kept(root):
    """The folder of a partition that was computed and kept."""
    build_store(root, METIS)
    (folder,) = (root / "datasets" / "partitions" / "computed").iterdir()
    return folder


@pytest.fixture
def computed(monkeypatch):
    """How often METIS was asked."""
    asked = []
    metis = engines.METHODS["metis"]
    monkeypatch.setitem(engines.METHODS, "metis", lambda *given: asked.append(given[1:]) or metis(*given))
    return asked


def dense(store):
    return to_scipy(store.adjacency(EVERYONE, EVERYONE)).toarray().astype(np.float32)


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("partition", ["random", "metis", "hypergraph", "libra", "file:mine"])
def test_the_partitioned_store_is_the_same_graph_in_another_order(root, bring, where, partition):
    bring("mine", [3 - v % 4 for v in EVERYONE])
    choice = DatasetChoice(name="toy", partition=partition, parts=4)
    if where == "disk":
        build_store(root, choice)
    store, plain = open_dataset(root, choice), open_dataset(root, PLAIN)
    assert isinstance(store, Store if where == "disk" else MemoryStore)
    order = store.orders.p
    P = np.eye(N, dtype=np.float32)[order]
    np.testing.assert_array_equal(dense(store), P @ dense(plain) @ P.T)
    assert torch.equal(store.labels(EVERYONE), plain.labels(EVERYONE)[order])
    assert torch.equal(store.split(EVERYONE), plain.split(EVERYONE)[order])
    widths = range(plain.features)
    assert torch.equal(store.feature_block(EVERYONE, widths), plain.feature_block(EVERYONE, widths)[order])
    assert len(store.bounds) == 5
    assert plain.bounds is None


def test_a_brought_partition_is_followed(root, bring):
    bring("mine", [2] * 3 + [0] * 50)
    store = open_dataset(root, DatasetChoice(name="toy", partition="file:mine", parts=3))
    assert store.bounds == (0, 50, 50, 53)
    assert store.orders.p.tolist() == [*range(3, 53), 0, 1, 2]


def test_every_partition_has_a_folder_of_its_own(root, bring):
    def folder(**order):
        return locate_store(root, load_card(root, "toy"), DatasetChoice(name="toy", **order))

    bring("mine", [0, 1])
    folders = [folder(), folder(permutation="single")]
    folders += [
        folder(partition=method, parts=parts, seed=seed)
        for method in ("random", "metis", "hypergraph")
        for parts in (2, 3)
        for seed in (0, 1)
    ]
    folders.append(folder(partition="file:mine", parts=2))
    assert folder(partition="file:mine", parts=2, seed=9) == folders[-1]
    bring("mine", [1, 0])
    folders.append(folder(partition="file:mine", parts=2))
    bring("yours", [1, 0])
    folders.append(folder(partition="file:yours", parts=2))
    assert len(set(folders)) == len(folders)


def test_the_manifest_says_what_the_partition_is(root, bring):
    brought = bring("mine", [v % 4 for v in EVERYONE])
    manifest = Store(build_store(root, METIS)).manifest
    assert (manifest.partition, manifest.parts, manifest.seed) == ("metis", 4, 1)
    assert manifest.choice == METIS
    assert manifest.provenance.versions["partition"] == partitioners.VERSION
    assert sum(manifest.cut.nonzeros) == manifest.counts.nnz_adj
    mine = Store(build_store(root, DatasetChoice(name="toy", partition="file:mine", parts=4))).manifest
    assert mine.provenance.sources["partitions/mine"].bytes == brought.stat().st_size


def test_a_damaged_partitioned_store_names_the_command_that_makes_it_right(root):
    folder = build_store(root, METIS)
    (folder / "orders" / "p.npy").write_bytes(b"?")
    again = "harness data build toy --partition metis --parts 4 --seed 1"
    with pytest.raises(UserError, match=again):
        verify_store(root, METIS)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=again):
        verify_store(root, METIS)
    assert build_store(root, METIS) == folder
    assert verify_store(root, METIS) == folder


def test_a_brought_partition_of_another_graph_is_refused_by_name(root, bring):
    path = bring("mine", range(4))
    for ask in (build_store, open_dataset):
        with pytest.raises(UserError, match=rf"{path} .* 4 .* 53 "):
            ask(root, DatasetChoice(name="toy", partition="file:mine", parts=4))


def test_a_computed_partition_is_kept_and_used_again(root, computed):
    build_store(root, METIS)
    first = open_dataset(root, METIS).orders.p.clone()
    shutil.rmtree(root / "datasets" / "store")
    again = open_dataset(root, METIS)
    assert isinstance(again, MemoryStore)
    assert torch.equal(first, again.orders.p)
    assert computed == [(4, 1)]


def test_a_rank_refuses_a_partition_that_is_not_computed_and_opens_a_prepared_one(root, computed):
    with pytest.raises(UserError, match="harness data build toy"):
        open_prepared_dataset(root, METIS)
    assert computed == []
    prepare_dataset(root, METIS)
    prepared = open_prepared_dataset(root, METIS)
    assert isinstance(prepared, MemoryStore)
    assert torch.equal(prepared.orders.p, open_dataset(root, METIS).orders.p)
    assert computed == [(4, 1)]


def test_preparing_leaves_graphs_alone_that_have_a_store_or_no_partition(root, computed):
    for choice in (PLAIN, DatasetChoice(name="toy", partition="random", parts=4)):
        prepare_dataset(root, choice)
    assert not (root / "datasets" / "partitions").exists()
    build_store(root, METIS)
    shutil.rmtree(root / "datasets" / "partitions")
    prepare_dataset(root, METIS)
    assert isinstance(open_prepared_dataset(root, METIS), Store)
    assert computed == [(4, 1)]


def test_nothing_is_kept_of_what_costs_nothing(root, bring):
    bring("mine", [0] * N)
    build_store(root, DatasetChoice(name="toy", partition="random", parts=4))
    build_store(root, DatasetChoice(name="toy", partition="file:mine", parts=4))
    assert [path.name for path in (root / "datasets" / "partitions").iterdir()] == ["mine"]


def test_a_changed_graph_never_meets_an_old_partition(root, write_card, computed):
    build_store(root, METIS)
    write_card(root, "toy", seed=4)
    build_store(root, METIS)
    write_card(root, "toy", seed=4, features={"kind": "uniform", "width": 3})  # the same edges
    build_store(root, METIS)
    assert len(computed) == 2


def test_of_two_processes_that_ask_at_once_one_computes(root, monkeypatch):
    """The second one begins while the first computes, waits for its lock, and reads what the first kept."""
    metis, fork = engines.METHODS["metis"], get_context("fork")
    asked, begun = fork.Value("i", 0), fork.Event()
    receiver, sender = fork.Pipe(duplex=False)

    def counted(*given):
        asked.value += 1
        begun.set()
        assert not receiver.poll(0.5), "the second process did not wait"
        return metis(*given)

    def second():
        torch.set_num_threads(1)  # a fork lacks the threads of its parent
        begun.wait()
        sender.send(open_dataset(root, METIS).orders.p.tolist())

    monkeypatch.setitem(engines.METHODS, "metis", counted)
    other = fork.Process(target=second, daemon=True)
    other.start()
    first = open_dataset(root, METIS).orders.p.tolist()
    assert receiver.poll(60)
    assert receiver.recv() == first
    other.join()
    assert asked.value == 1


def test_without_locks_both_use_what_the_first_kept(root, monkeypatch):
    """The slower one finds the faster one's partition where it meant to put its own."""
    metis = engines.METHODS["metis"]

    def no_locks(*_):
        raise OSError("this file system has no locks")

    def overtaken(*given):
        monkeypatch.setitem(engines.METHODS, "metis", metis)
        build_store(root, METIS)
        return torch.zeros(N, dtype=torch.int64)

    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setitem(engines.METHODS, "metis", overtaken)
    slow = open_dataset(root, METIS)
    assert torch.equal(slow.orders.p, open_dataset(root, METIS).orders.p)
    assert slow.bounds != (0, N, N, N, N)


ORDERS = [
    DatasetChoice(name="toy", partition=method, parts=parts, seed=seed)
    for method in ("metis", "hypergraph")
    for parts, seed in ((2, 0), (4, 0), (4, 1))
]


def contents_of(folders):
    """The bytes of all files of these folders, by name."""
    return {path.name: path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.npy"))}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow), 6])
def test_partitions_do_not_depend_on_how_many_are_computed_at_once(
    root, tmp_path, monkeypatch, computed, workers
):
    computed_in = root / "datasets" / "partitions" / "computed"
    alone = [contents_of([build_store(root, choice)]) for choice in ORDERS]
    kept = {folder.name: contents_of([folder]) for folder in computed_in.iterdir()}
    for name in ("store", "partitions"):
        shutil.rmtree(root / "datasets" / name)
    computed.clear()
    folders = build_stores(root, ORDERS, BuildResources(workers=workers))
    assert [contents_of([folder]) for folder in folders] == alone
    assert {folder.name: contents_of([folder]) for folder in computed_in.iterdir()} == kept
    assert len(kept) == len(ORDERS)
    assert len(computed) == (3 if workers == 1 else 0), "forked processes compute METIS, unless one is all"


def test_as_many_are_computed_at_once_as_the_memory_allows(root, computed):
    """Room for one: this process computes all. No room for one: none is computed."""
    choices = ORDERS[:3]
    with pytest.raises(UserError, match=r"metis.* toy "):
        build_stores(root, choices, BuildResources(memory=1 << 14, workers=4))
    assert computed == []
    build_stores(root, choices, BuildResources(memory=100_000, workers=4))
    assert len(computed) == 3


def test_cause_of_a_partitioner_exit_is_reported(root, monkeypatch):
    def refused(*_):
        raise UserError("no such engine")

    monkeypatch.setitem(engines.METHODS, "metis", refused)
    with pytest.raises(UserError, match="no such engine"):
        build_stores(root, ORDERS[:2], BuildResources())
    monkeypatch.setitem(engines.METHODS, "metis", lambda *_: os._exit(9))
    with pytest.raises(RunError, match=r"ended with 9.*--workers"):
        build_stores(root, ORDERS[:2], BuildResources())


def altered(folder, **changes):
    """A record with other words."""
    path = folder / "partition.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replaced(folder, array):
    """Another array, with the checksum that fits it."""
    np.save(folder / "part.npy", array)
    content = (folder / "part.npy").read_bytes()
    altered(folder, array={"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


@pytest.mark.parametrize(
    ("harm", "file", "said"),
    [
        (lambda f: (f / "part.npy").write_bytes(b"?" * 340), "part.npy", ""),
        (lambda f: (f / "part.npy").unlink(), "part.npy", ""),
        (lambda f: (f / "partition.json").unlink(), "partition.json", ""),
        (lambda f: (f / "partition.json").write_text("{"), "partition.json", ""),
        (lambda f: (f / "partition.json").write_text("{}"), "partition.json", "name"),
        (lambda f: altered(f, parts=8), "partition.json", "parts = 8 instead of 4"),
        (lambda f: altered(f, structure="0" * 64), "partition.json", "structure"),
        (lambda f: replaced(f, np.zeros(52, np.int32)), "part.npy", "(52,), expected int32 of shape (53,)"),
        (lambda f: replaced(f, np.zeros(53)), "part.npy", "float64"),
        (lambda f: replaced(f, np.full(53, 4, np.int32)), "part.npy", "4 to 4, expected 0 to 3"),
        (lambda f: replaced(f, np.full(53, -1, np.int32)), "part.npy", "-1 to -1, expected 0 to 3"),
    ],
)
def test_a_kept_partition_that_does_not_fit_is_refused_by_name_with_the_way_out(
    root, kept, computed, harm, file, said
):
    harm(kept)
    shutil.rmtree(root / "datasets" / "store")
    for ask in (build_store, open_dataset):
        with pytest.raises(UserError) as refusal:
            ask(root, METIS)
        for words in (str(kept / file), said, f"the folder {kept}", "harness data build toy"):
            assert words in str(refusal.value)
    assert computed == []
    shutil.rmtree(kept)
    assert build_store(root, METIS).exists()
    assert len(computed) == 1


@pytest.mark.parametrize("partition", ["metis", "hypergraph"])
def test_build_that_exceeds_memory_is_refused_before_it_starts(root, write_card, computed, partition):
    """And is no obstacle to what is there already, or needs no graph."""
    choice = DatasetChoice(name="toy", partition=partition, parts=4)
    little = BuildResources(memory=1 << 14)
    for resources in (little, BuildResources(memory=1 << 10)):
        with pytest.raises(UserError, match=rf"{partition}.* toy .*--memory \d+.*file:NAME"):
            build_store(root, choice, resources=resources)
    assert computed == []
    assert list((root / "datasets" / "store").iterdir()) == []
    build_store(root, DatasetChoice(name="toy", partition="random", parts=4), resources=little)
    folder = build_store(root, choice)
    shutil.rmtree(folder)
    assert build_store(root, choice, resources=little) == folder


@pytest.mark.parametrize("directed", [False, True])
def test_the_structure_is_the_graph_without_its_weights(root, write_card, directed):
    write_card(root, "toy", directed=directed)
    card = load_card(root, "toy")
    A, found = load_graph(card, root).A, load_pattern(open_contents(card, root))
    assert torch.equal(found.rowptr, A.rowptr)
    assert torch.equal(found.col, A.col)
    assert found.shape == A.shape
    assert found.nnz == A.nnz
