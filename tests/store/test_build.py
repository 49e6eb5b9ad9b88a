"""Datasets by name: made in memory or opened, built once, built again when damaged, safe with several builders."""

import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from harness.base.errors import RunError, UserError
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.location import verify_store
from harness.graph.store.manifest import MANIFEST_FILE, StoreFiles
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.spec.dataset import DatasetChoice


def chosen(name="toy", **order):
    return DatasetChoice(name=name, **order)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def same_blocks(one, other):
    """Whether two stores serve the same data; one of them may keep weights in float64."""
    n, all_features = range(one.n), range(one.features)
    for order in (0, 1):
        A, B = one.adjacency(n, n, order), other.adjacency(n, n, order)
        if not all(
            torch.equal(a, b)
            for a, b in ((A.rowptr, B.rowptr), (A.col, B.col), (A.val.float(), B.val.float()))
        ):
            return False
        if not torch.equal(one.labels(n, order), other.labels(n, order)):
            return False
    return torch.equal(one.feature_block(n, all_features), other.feature_block(n, all_features))


@pytest.mark.parametrize("permutation", ["none", "single", "double"])
def test_a_small_dataset_is_the_same_in_memory_and_on_disk(root, permutation):
    in_memory = open_dataset(root, chosen(permutation=permutation, seed=2))
    assert isinstance(in_memory, MemoryStore)
    folder = build_store(root, chosen(permutation=permutation, seed=2))
    on_disk = open_dataset(root, chosen(permutation=permutation, seed=2))
    assert isinstance(on_disk, Store)
    assert on_disk.folder == folder
    assert same_blocks(in_memory, on_disk)


def test_a_second_build_does_nothing(root):
    folder = build_store(root, chosen())
    before = stamps(folder)
    assert build_store(root, chosen()) == folder
    assert stamps(folder) == before


def test_equal_inputs_give_equal_bytes_anywhere(root, tmp_path, monkeypatch):
    first = build_store(root, chosen(permutation="double", seed=1))
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path / "elsewhere"))
    second = build_store(root, chosen(permutation="double", seed=1))
    assert second.parent == tmp_path / "elsewhere" / "store"
    assert (first / MANIFEST_FILE).read_bytes() == (second / MANIFEST_FILE).read_bytes()
    assert str(tmp_path) not in (first / MANIFEST_FILE).read_text()


def test_every_input_has_a_folder_of_its_own(root, write_card):
    folders = {
        build_store(root, chosen(permutation=permutation, seed=seed))
        for permutation in ("single", "double")
        for seed in (0, 1)
    }
    folders |= {build_store(root, chosen(seed=seed)) for seed in (0, 1)}
    write_card(root, "toy", seed=4)
    folders.add(build_store(root, chosen()))
    assert len(folders) == 6


def test_words_and_checks_of_a_card_change_no_folder(root, write_card):
    folder = build_store(root, chosen())
    write_card(root, "toy", description="other words", expected={"n": 53})
    assert build_store(root, chosen()) == folder


def test_a_store_is_held_against_what_its_card_expects_today(root, write_card):
    build_store(root, chosen())
    write_card(root, "toy", expected={"n": 54})
    for ask in (build_store, open_dataset):
        with pytest.raises(UserError, match="n is 53, expected 54"):
            ask(root, chosen())


@pytest.mark.parametrize("damage", ["alter", "truncate", "unlink", "manifest"])
def test_a_damaged_store_is_refused_and_then_built_again(root, damage):
    folder = build_store(root, chosen())
    path = folder / (MANIFEST_FILE if damage == "manifest" else "features/1-0.npy")
    content = path.read_bytes()
    match damage:
        case "alter":
            path.write_bytes(content[:-1] + b"?")
        case "truncate":
            path.write_bytes(content[:-1])
        case _:
            path.unlink()
    with pytest.raises(UserError, match="harness data build toy"):
        verify_store(root, chosen())
    assert build_store(root, chosen()) == folder
    assert path.read_bytes() == content
    assert verify_store(root, chosen()) == folder


def test_a_changed_source_file_is_built_again_and_a_lost_one_is_not_missed(root, write_card):
    raw = root / "datasets" / "raw"
    raw.mkdir()
    write_card(
        root, "mine", source={"kind": "edges", "path": "raw/e.txt", "n": 9}, labels={"kind": "uniform"}
    )
    (raw / "e.txt").write_text("0 1\n")
    with pytest.raises(UserError, match="harness data build mine"):
        open_dataset(root, chosen("mine"))
    folder = build_store(root, chosen("mine"))
    assert open_dataset(root, chosen("mine")).nnz == 11
    (raw / "e.txt").write_text("0 1\n2 3\n")
    assert build_store(root, chosen("mine")) == folder
    assert open_dataset(root, chosen("mine")).nnz == 13
    shutil.rmtree(raw)
    assert build_store(root, chosen("mine")) == folder
    assert open_dataset(root, chosen("mine")).nnz == 13


def test_the_manifest_says_where_the_data_came_from(root, write_card):
    sparse.save_npz(root / "datasets" / "g.npz", sparse.csr_array(np.eye(5)))
    write_card(root, "mine", source={"kind": "npz", "path": "g.npz"}, labels={"kind": "degree"})
    provenance = Store(build_store(root, chosen("mine"))).manifest.provenance
    assert provenance.sources["g.npz"].bytes == (root / "datasets" / "g.npz").stat().st_size
    assert {"kind": "npz", "path": "g.npz"}.items() <= provenance.card["source"].items()
    assert provenance.versions == {"recipes": 1}
    assert Store(build_store(root, chosen())).manifest.provenance.versions == {"recipes": 1, "generator": 1}


def test_a_grid_can_be_asked_for(root):
    assert Store(build_store(root, chosen())).manifest.grid.vertices == 4
    assert Store(build_store(root, chosen(), side=3)).manifest.grid.vertices == 3
    before = stamps(build_store(root, chosen(), side=3))
    assert stamps(build_store(root, chosen())) == before


@pytest.mark.parametrize("damaged", [False, True])
def test_builders_at_once_leave_one_sound_store(root, damaged):
    folders, errors = [], []
    if damaged:
        (build_store(root, chosen(permutation="double", seed=7)) / "features" / "0-0.npy").unlink()

    def work():
        try:
            folders.append(build_store(root, chosen(permutation="double", seed=7)))
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
    assert len(set(folders)) == 1
    StoreFiles(folders[0]).verify()
    assert [path.name for path in folders[0].parent.iterdir()] == [folders[0].name]


def test_the_manifest_hash_stands_for_the_data(root, write_card):
    first = open_dataset(root, chosen(permutation="single", seed=1)).manifest_hash
    assert open_dataset(root, chosen(permutation="single", seed=1)).manifest_hash == first
    assert open_dataset(root, chosen(permutation="single", seed=2)).manifest_hash != first
    write_card(root, "toy", seed=1)
    assert open_dataset(root, chosen(permutation="single", seed=1)).manifest_hash != first


@pytest.mark.parametrize("permutation", ["none", "double"])
def test_the_room_a_store_needs_is_known_before_it_is_written(root, monkeypatch, permutation):
    folder = build_store(root, chosen(permutation=permutation))
    taken = sum(path.stat().st_size for path in folder.rglob("*.npy"))
    shutil.rmtree(folder)

    def free(room):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=room))

    free(taken - 1)
    with pytest.raises(RunError, match="bytes free"):
        build_store(root, chosen(permutation=permutation))
    free(5 * taken)
    assert build_store(root, chosen(permutation=permutation)) == folder
