"""The files that HipMCL and CombBLAS read: names or numbers, text or binary, give one graph."""

import gzip
from collections import Counter

import numpy as np
import pytest

from harness.errors import UserError
from harness.sources import ReadOptions
from harness.sources.hipmcl import HEADER, CombBlas, Triples

NAMES = [f"protein|{number % 7}_{chr(97 + number)}" for number in range(20)] + ["ö", "Z"]
RNG = np.random.default_rng(2)
ENDS = RNG.integers(0, len(NAMES), (2, 60))
ENDS[0, : len(NAMES)] = np.arange(len(NAMES))


def read(source, folder, at_once):
    """The graph as edges between numbers."""
    stream = source.open_stream(ReadOptions(folder, 0, 1, 0))
    chunks = [chunk for piece in stream.pieces(at_once) for chunk in piece()]
    found = [pair for source, target in chunks for pair in zip(source.tolist(), target.tolist(), strict=True)]
    return stream, Counter(found)


@pytest.mark.parametrize("at_once", [1, 5, 1000])
@pytest.mark.parametrize(
    ("name", "separator"), [("g.triples", "\t"), ("g.triples", " "), ("g.triples.gz", "\t")]
)
@pytest.mark.parametrize("weight", ["", "0.34", '0"5'])
def test_names_have_the_numbers_of_their_order(tmp_path, name, separator, weight, at_once):
    """As Python sorts their bytes, whichever came first."""
    lines = [[NAMES[a], NAMES[b], *([weight] if weight else [])] for a, b in ENDS.T]
    text = "".join(separator.join(words) + "\n" for words in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    stream, found = read(Triples(kind="triples", path=name), tmp_path, at_once)
    order = sorted(NAMES, key=str.encode)
    assert (stream.n, stream.entries) == (len(NAMES), ENDS.shape[1])
    assert found == Counter((order.index(NAMES[a]), order.index(NAMES[b])) for a, b in ENDS.T)


def test_the_order_of_lines_changes_nothing(tmp_path):
    lines = [f"{NAMES[a]}\t{NAMES[b]}\t1\n" for a, b in ENDS.T]
    (tmp_path / "one").write_text("".join(lines))
    (tmp_path / "other").write_text("".join(lines[::-1]))
    one, other = (read(Triples(kind="triples", path=name), tmp_path, 100)[1] for name in ("one", "other"))
    assert one == other


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no edges"),
        ("\n\n", "has no edges"),
        ("a\tb\t1\nc\n", "Expected"),
        ("alone\n", "Expected"),
        (" a b\n", "line 1: 'a b' has an end that is empty"),
        ("a\t\tb\n", "has an end that is empty"),
    ],
)
def test_lines_that_are_no_triples_are_refused(tmp_path, text, told):
    (tmp_path / "g.triples").write_text(text)
    with pytest.raises(UserError, match=told):
        Triples(kind="triples", path="g.triples").open_stream(ReadOptions(tmp_path, 0, 1, 0))


def binary(path, bits=64, value="<f4", n=22, **changes):
    """What CombBLAS writes: 52 bytes, then row, column and value of every entry."""
    entries = np.zeros(
        ENDS.shape[1], [("row", f"<i{bits // 8}"), ("col", f"<i{bits // 8}"), ("value", value)]
    )
    entries["row"], entries["col"] = ENDS
    said = {"size": entries.itemsize, "format": 0, "rows": n, "cols": n, "entries": len(entries), **changes}
    head = b"HKDT" + np.array([1, *said.values()], "<u8").tobytes()
    assert len(head) == HEADER.itemsize == 52
    path.write_bytes(head + entries.tobytes())


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize(("bits", "value"), [(64, "<f4"), (64, "<f8"), (32, "<f4")])
def test_binary_is_the_same_graph(tmp_path, bits, value, at_once):
    binary(tmp_path / "g.bin", bits, value)
    stream, found = read(CombBlas(kind="combblas", path="g.bin", index_bits=bits), tmp_path, at_once)
    assert (stream.n, stream.entries) == (len(NAMES), ENDS.shape[1])
    assert found == Counter(zip(*ENDS.tolist(), strict=True))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 1}, "has an unexpected header"),
        ({"cols": 3}, "an adjacency is square"),
        ({"entries": 61}, "61 entries of 20 bytes"),
        ({"n": 5}, r"edges with ids 0 .. 21, but its vertices are 0 .. 4\. Do its ids have 64 bits"),
        ({"bits": 32, "value": "<f8"}, "index_bits"),
        ({"bits": 32, "value": "<f4"}, "two ids take 16"),
    ],
)
def test_binary_that_is_not_whole_is_refused(tmp_path, changes, told):
    binary(tmp_path / "g.bin", **changes)
    with pytest.raises(UserError, match=told):
        CombBlas(kind="combblas", path="g.bin").open_stream(ReadOptions(tmp_path, 0, 1, 0))


@pytest.mark.parametrize("data", [b"", b"HKDT", b"PK" + bytes(60)])
def test_another_file_is_refused(tmp_path, data):
    (tmp_path / "g.bin").write_bytes(data)
    with pytest.raises(UserError, match="has an unexpected header"):
        CombBlas(kind="combblas", path="g.bin").open_stream(ReadOptions(tmp_path, 0, 1, 0))
