"""Vertices with names have the numbers of their sorted order, whatever the order and the separator of the lines."""

import gzip
from collections import Counter

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.graph.sources import ReadOptions
from harness.graph.sources.edge_list import EdgeList

NAMES = [f"protein|{number % 7}_{chr(97 + number)}" for number in range(20)] + ["ö", "Z"]
RNG = np.random.default_rng(2)
ENDS = RNG.integers(0, len(NAMES), (2, 60))
ENDS[0, : len(NAMES)] = np.arange(len(NAMES))


def open_edges(folder, name):
    return EdgeList(kind="edges", path=name, names=True).open_stream(ReadOptions(folder, 0, 1, 0))


def count_pairs(stream, at_once):
    chunks = [chunk for piece in stream.pieces(at_once) for chunk in piece()]
    return Counter(
        pair for source, target in chunks for pair in zip(source.tolist(), target.tolist(), strict=True)
    )


@pytest.mark.parametrize("at_once", [1, 5, 1000])
@pytest.mark.parametrize(
    ("name", "separator"), [("g.triples", "\t"), ("g.triples", " "), ("g.triples.gz", "\t")]
)
@pytest.mark.parametrize("weight", ["", "0.34", '0"5'])
def test_names_are_numbered_in_sorted_order(tmp_path, name, separator, weight, at_once):
    """As Python sorts their bytes, in any order of the lines."""
    lines = [[NAMES[a], NAMES[b], *([weight] if weight else [])] for a, b in ENDS.T]
    text = "".join(separator.join(words) + "\n" for words in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    stream = open_edges(tmp_path, name)
    order = sorted(NAMES, key=str.encode)
    assert (stream.n, stream.entries) == (len(NAMES), ENDS.shape[1])
    expected = Counter((order.index(NAMES[a]), order.index(NAMES[b])) for a, b in ENDS.T)
    assert count_pairs(stream, at_once) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no edges"),
        ("\n\n", "has no edges"),
        ("a\tb\t1\nc\n", "line 2: 'c' is not an edge"),
        ("alone\n", "Expected one edge per line"),
        (" a b\n", "line 1: 'a b' has an end that is empty"),
        ("a\t\tb\n", "has an end that is empty"),
    ],
)
def test_invalid_line_is_refused(tmp_path, text, words):
    (tmp_path / "g.triples").write_text(text)
    with pytest.raises(UserError, match=words):
        open_edges(tmp_path, "g.triples")
