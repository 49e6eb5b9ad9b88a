"""A twin is a dataset like any other, as large as it says, and cards that cannot have one say why."""

import pytest

from harness.errors import UserError
from harness.store.build import build, open_dataset
from harness.store.catalog import load_card
from harness.store.choice import DatasetChoice, without_width

PUBLISHED = {
    "source": {"kind": "edges", "path": "nowhere.txt"},
    "features": {"kind": "file"},
    "labels": {"kind": "file"},
    "split": {"kind": "file"},
    "classes": 9,
    "expected": {"n": 32_000, "stored": 320_000, "features": 10},
}


@pytest.mark.parametrize("nature", ["power", "clusters", "lattice"])
@pytest.mark.parametrize(("scale", "share"), [("1", 1), ("1/16", 1 / 16), ("1-16", 1 / 16), ("3/4", 0.75)])
def test_a_twin_has_its_share(root, write_card, nature, scale, share):
    write_card(root, "big", **PUBLISHED, nature=nature)
    choice = DatasetChoice(name=f"big@{scale}")
    store = open_dataset(root, choice)
    assert store.n == pytest.approx(32_000 * share, rel=0.01)
    degree = (store.nnz - store.n) / store.n
    most = 20 if nature != "lattice" else 4
    assert 0.5 * most < degree <= most
    assert (store.features, store.classes) == (10, 9)
    assert choice.name == f"big@{scale.replace('/', '-')}"


def test_two_spellings_are_one_dataset(root, write_card):
    write_card(root, "big", **PUBLISHED, nature="power")
    folders = {build(root, DatasetChoice(name=f"big@{scale}")) for scale in ("1/64", "1-64")}
    assert len(folders) == 1
    assert "big@1-64" in folders.pop().name


def test_features_of_another_width_are_on_the_same_graph(root, write_card):
    write_card(root, "big", **PUBLISHED, nature="power")
    narrow, wide = (open_dataset(root, DatasetChoice(name=f"big@1/64{width}")) for width in ("", "w33"))
    assert (narrow.features, wide.features) == (10, 33)
    everyone = range(narrow.n)
    for one, other in zip(
        *(store.adjacency(everyone, everyone)[:3] for store in (narrow, wide)), strict=True
    ):
        assert one.equal(other)
    assert without_width("big@1-64w33") == without_width("big@1-64") == "big@1-64"
    assert without_width("bigw33") == "bigw33"


@pytest.mark.parametrize("scale", ["", "1w0", "w16", "0", "2", "1/0", "3/2", "a", "1/2/3", "-1"])
def test_a_scale_is_a_share(root, write_card, scale):
    write_card(root, "big", **PUBLISHED, nature="power")
    with pytest.raises(UserError, match="as large as its graph or smaller"):
        load_card(root, f"big@{scale}")


def test_a_card_without_a_nature_has_no_twins(root, write_card):
    write_card(root, "big", **{**PUBLISHED, "expected": {"n": 9}})
    with pytest.raises(UserError, match=r"does not say nature, expected\.nnz_adj, expected\.features"):
        load_card(root, "big@1")
