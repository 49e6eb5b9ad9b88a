"""Folders as the authors of GraphSAINT publish them: Amazon's products, Yelp, Flickr, and a smaller Reddit.

adj_full.npz is a matrix as scipy saves it, feats.npy its features, class_map.json the class of every vertex or a 0 or
1 for each class, role.json who trains, validates and tests. Row i of the matrix has the edges from vertex i.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.errors import UserError
from harness.files import mapped_array
from harness.graph.model import NO_LABEL, TEST, TRAIN, VALID, Bytes, Floats, Ints, Labels
from harness.sources.arrays import ArrayIn, head_of, part_of, whole_array
from harness.sources.refusal import refusing
from harness.sources.remote import Remote
from harness.sources.source import Rest, Source
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, counted

EXPECTED = "the folder of GraphSAINT with adj_full.npz, feats.npy, class_map.json and role.json"
FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
PUBLISHED = {
    "amazon": (
        "17qhNA8H1IpbkkR-T2BmPQm8QNW5do-aa",
        "10SW8lCvAj-kb6ckkfTOC5y0l8XXdtMxj",
        "1LIl4kimLfftj4-7NmValuWyCQE8AaE7P",
        "1npK9xlmbnjNkV80hK2Q68wTEVOFjnt4K",
    ),
    "flickr": (
        "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy",
        "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
        "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9",
        "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
    ),
    "yelp": (
        "1Juwx8HtDwSzmVIJ31ooVa1WljI4U5JnA",
        "1Zy6BZH_zLEjKlEFSduKE5tV9qqA_8VtM",
        "1VUcBGr0T0-klqerjAjxRmAqFuld_SMWU",
        "1NI5pa5Chpd-52eSmLW60OnB3WS5ikxq_",
    ),
    "reddit2": (
        "1sncK996BM5lpuDf75lDFqCiDZyErc1c2",
        "1ZsHaJ0ussP1W722krmEIp_8pwKAoi5b3",
        "1JF3Pjv9OboMNYs2aXRQGbJbc4t_nDd5u",
        "1nJIKd77lcAGU4j-kVNx_AIGEkveIKz3A",
    ),
}
"""By name, what Google Drive calls the files; there are no checksums."""
ROLES = {"tr": TRAIN, "va": VALID, "te": TEST}
ITEM = re.compile(r'\s*"(\d+)"\s*:\s*(\[[^\[\]]*\]|[^\[\],}]+?)\s*([,}])')
"""Of a map of classes: the vertex, its class or classes, and whether another follows."""
BLOCK = 1 << 24
"""Characters read at a time."""


class GraphSaint(Source):
    """One of those that are published, or a folder of the same files."""

    kind: Literal["graphsaint"]
    dataset: Literal["amazon", "flickr", "yelp", "reddit2"] | None = None
    path: str | None = None
    """The folder; without one the files are those that are published."""
    sha256: dict[str, str] = {}
    """Of the published files, by name."""

    def remotes(self) -> list[Remote]:
        if self.path is not None or self.dataset is None:
            return []
        return [
            Remote(
                url=f"https://drive.usercontent.google.com/download?id={key}&confirm=t",
                file=f"{self._folder}/{file}",
                sha256=self.sha256.get(file),
            )
            for file, key in zip(FILES, PUBLISHED[self.dataset], strict=True)
        ]

    def files(self) -> list[str]:
        return [f"{self._folder}/{file}" for file in FILES]

    @property
    def _folder(self) -> str:
        return self.path or f"raw/graphsaint/{self.dataset}"

    def stream(self, rest: Rest) -> Stream:
        matrix, features, classes, roles = (rest.folder / file for file in self.files())
        with refusing(matrix, EXPECTED):
            rowptr = _row_pointers(matrix)
            n, entries = len(rowptr) - 1, int(rowptr[-1])
            pieces = partial(_pieces, ArrayIn(matrix, ("indices",)), rowptr)
            if not counted(pieces(AT_ONCE)).within(range(n)):
                raise UserError(f"{matrix}: entries name columns that are not there; there are {n:,}.")
        with refusing(classes, EXPECTED):
            y = _labels(classes, n)
        with refusing(roles, EXPECTED):
            split = _split(roles, n)
        return Stream(n, entries, pieces, partial(_features, features, n), y, split)


def _row_pointers(matrix: Path) -> Ints:
    shape = whole_array(ArrayIn(matrix, ("shape",)))
    rowptr = whole_array(ArrayIn(matrix, ("indptr",))).astype(np.int64)
    stored = head_of(ArrayIn(matrix, ("indices",))).shape[0]
    if not (shape[0] == shape[1] == len(rowptr) - 1):
        raise UserError(
            f"{matrix}: a matrix of {shape[0]} x {shape[1]} with {len(rowptr)} row pointers. Expected n x n, and n + 1."
        )
    if rowptr[0] != 0 or rowptr[-1] != stored or (np.diff(rowptr) < 0).any():
        raise UserError(f"{matrix}: its row pointers do not cut {stored:,} entries into rows.")
    return rowptr


def _pieces(columns: ArrayIn, rowptr: Ints, at_once: int) -> list[Piece]:
    """One: what is compressed is read from its beginning."""

    def edges() -> Iterator[Edges]:
        start, entries = 0, int(rowptr[-1])
        for targets in part_of(columns, 0, entries, at_once):
            stop = start + len(targets)
            first, last = np.searchsorted(rowptr, [start, stop - 1], side="right") - 1
            lengths = np.diff(rowptr[first : last + 2].clip(start, stop))
            yield np.repeat(np.arange(first, last + 1), lengths), targets.astype(np.int64)
            start = stop

    return [edges]


def _features(path: Path, n: int) -> Floats:
    with refusing(path, EXPECTED):
        X: Any = mapped_array(path, "r")
    if X.ndim != 2 or len(X) != n:
        raise UserError(f"{path} has the shape {X.shape}, but there are {n:,} vertices.")
    return X  # type: ignore[no-any-return]


def _labels(path: Path, n: int) -> Labels | None:
    """Of every vertex; the first says of which kind they all are."""
    y: Any = None
    for vertex, said in _items(path):
        if y is None:
            many = isinstance(said, list)
            y = np.full((n, len(said)), NO_LABEL, np.int8) if many else np.full(n, NO_LABEL, np.int64)
        if vertex >= n:
            raise UserError(f"{path} names vertex {vertex}, but there are {n:,}.")
        if np.shape(said) != y.shape[1:]:
            raise UserError(
                f"{path}, vertex {vertex}: {str(said)[:40]} is not of the same kind as those before."
            )
        y[vertex] = said
        if (y[vertex] != said).any():
            raise UserError(f"{path}, vertex {vertex}: {str(said)[:40]} holds what is no whole number.")
    return y  # type: ignore[no-any-return]


def _items(path: Path) -> Iterator[tuple[int, Any]]:
    """Vertices and classes, one at a time: as Python's own numbers all of them would not fit."""
    with path.open(encoding="utf-8-sig") as file:
        text, place, ending = file.read(BLOCK).lstrip().removeprefix("{"), 0, ","
        while ending == ",":
            found = ITEM.match(text, place)
            while found is None and (more := file.read(BLOCK)):
                text, place = text[place:] + more, 0
                found = ITEM.match(text, place)
            if found is None:
                raise UserError(
                    f"{path}: {text[place : place + 40]!r} does not say a vertex and its classes."
                )
            yield int(found[1]), json.loads(found[2])
            place, ending = found.end(), found[3]


def _split(path: Path, n: int) -> Bytes:
    roles = json.loads(path.read_text(encoding="utf-8-sig"))
    split = np.zeros(n, np.uint8)
    for role, part in ROLES.items():
        vertices = np.asarray(roles[role], np.int64)
        if len(vertices) and not (vertices.min() >= 0 and vertices.max() < n):
            raise UserError(f"{path}: {role} names vertices up to {vertices.max()}, but there are {n:,}.")
        split[vertices] = part
    return split
