"""Each kind of source is found by its name in a card, and a kind that is gone names what to use instead."""

import subprocess
import sys
from typing import get_args

import pytest

from harness.base.errors import UserError
from harness.graph.cards.catalog import load_card
from harness.graph.sources import KINDS, REMOVED, load_kind


@pytest.mark.parametrize("kind", KINDS)
def test_kind_has_a_class_that_declares_it(kind):
    assert get_args(load_kind(kind).model_fields["kind"].annotation) == (kind,)


def test_reader_is_imported_when_a_card_has_its_kind():
    code = """
import sys
from harness.spec.root import find_root
from harness.graph.cards.catalog import load_card
load_card(find_root(), "tiny-sbm")
print(*(name for name in sys.modules if name.startswith("harness.graph.sources.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "harness.graph.sources.generated" in imported
    assert (
        not {
            "harness.graph.generators.sbm",
            "harness.graph.sources.ogb",
            "harness.graph.sources.matrix_market",
        }
        & imported
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "combblas", "path": "g.bin"}, ["combblas", "mtx"]),
        ({"kind": "triples", "path": "g.txt"}, ["triples", "kind: edges with names: true"]),
        ({"kind": "mtxx", "path": "g.mtx"}, ["Did you mean mtx?", "planetoid"]),
        ({"kind": ["mtx"]}, ["expected a mapping with a kind", "planetoid"]),
        (
            {"kind": "mtx", "pth": "g.mtx"},
            ["source.path is missing", "source.pth is not a key", "kind, path"],
        ),
        ({"kind": "edges", "path": "g", "base": 7}, ["source.base = 7"]),
    ],
)
def test_invalid_source_is_refused(root, write_card, source, words):
    write_card(root, "toy", source=source)
    with pytest.raises(UserError) as error:
        load_card(root, "toy")
    assert all(word in str(error.value) for word in words), error.value


def test_removed_kinds_are_gone():
    assert not set(REMOVED) & set(KINDS)
