"""Cards say what they accept; listing them loads no numbers."""

from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.graph.cards.catalog import list_cards, load_card

CATALOG = Path("datasets") / "catalog"


def refused(root, name="toy"):
    with pytest.raises(UserError) as error:
        load_card(root, name)
    return str(error.value)


def test_a_card_is_named_by_its_file(root, write_card):
    write_card(root, "other")
    assert list_cards(root) == ["other", "toy"]
    assert load_card(root, "other").name == "other"
    assert load_card(root, "toy").seed == 0


def test_an_unknown_name_is_answered_with_its_neighbours(root, write_card):
    write_card(root, "tiny-sbm")
    message = refused(root, "tiny-smb")
    assert all(word in message for word in ("'tiny-smb'", " tiny-sbm?", "toy"))
    assert "'../toy'" in refused(root, "../toy")


def test_no_catalog_is_no_cards(tmp_path):
    assert list_cards(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 0}, ["classes = 0", "1"]),
        ({"classes": None}, ["classes is missing"]),
        ({"classes": 1}, ["homophily to 1"]),
        ({"colour": "red"}, ["colour", "features, labels"]),
        ({"expected": {"edges": 4}}, ["edges"]),
        ({"split": {"kind": "random", "train": 0.9, "valid": 0.2}}, ["split", "1.1"]),
        ({"split": {"kind": "sorted"}}, ["split", "'random', 'all', 'file'"]),
        ({"features": {"kind": "gaussian", "width": -3}}, ["width = -3"]),
        ({"features": {"kind": "gaussian", "width": 3, "separation": float("inf")}}, [".inf", "finite"]),
        ({"source": "sbm"}, ["source"]),
        ({"source": {"kind": "rmat", "scale": 4, "a": 0.9, "b": 0.2}}, ["source", "1.29"]),
        ({"source": {"kind": "rmat", "scale": 4}}, ["labels", "planted", "rmat", "degree, uniform or file"]),
        ({"source": {"kind": "sbm", "n": 5, "mean_degree": 2, "homophily": 0.5}}, ["classes = 3", "n = 5"]),
        ({"source": {"kind": "sbm", "n": 50, "mean_degree": 2, "homophily": 1.5}}, ["homophily = 1.5"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_accepted(root, write_card, changes, words):
    write_card(root, "toy", **changes)
    message = refused(root)
    assert all(word in message for word in ["datasets/catalog/toy.yaml", *words])


@pytest.mark.parametrize("text", ["source: [", "a:\n\t- b", "- a\n- b\n", "", "name: other\n"])
def test_invalid_card_is_refused(root, text):
    (root / CATALOG / "toy.yaml").write_text(text)
    assert "toy.yaml" in refused(root)


def test_cards_are_frozen(root):
    with pytest.raises(ValueError, match="frozen"):
        load_card(root, "toy").classes = 9
