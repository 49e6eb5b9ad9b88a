"""Folders as the authors of GraphSAINT publish them: Amazon's products, Yelp, Flickr, and a smaller Reddit.

adj_full.npz is a matrix as scipy saves it, feats.npy its features, class_map.json the class of every vertex or a 0 or
1 for each class, role.json the training, validation and test vertices. Row i of the matrix has the edges from vertex i.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.errors import UserError
from harness.files import map_array
from harness.graph.model import NO_LABEL, Floats, Ints, Labels
from harness.sources.arrays import ArrayIn, head_of, part_of, whole_array
from harness.sources.refusal import refusing, split_of_ids
from harness.sources.remote import RemoteFile
from harness.sources.source import Rest, Source
from harness.sources.stream import AT_ONCE, Edges, Piece, Stream, counted

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
"""The ids of the files at Google Drive, by dataset; no checksums are published."""
ROLES = {"train": "tr", "valid": "va", "test": "te"}
ITEM = re.compile(r'\s*"(\d+)"\s*:\s*(\[[^\[\]]*\]|[^\[\],}]+?)\s*([,}])')
"""An item of a map of classes: the vertex, its class or classes, and whether another item follows."""
BLOCK = 1 << 24
"""Characters read at a time."""


class GraphSaint(Source):
    """A published dataset, or a folder of the same files."""

    kind: Literal["graphsaint"]
    dataset: Literal["amazon", "flickr", "yelp", "reddit2"] | None = None
    path: str | None = None
    """The folder; without one the files are the published ones."""
    sha256: dict[str, str] = {}
    """The checksums of the published files, by name."""

    def remotes(self) -> list[RemoteFile]:
        if self.path is not None or self.dataset is None:
            return []
        return [
            RemoteFile(
                url=f"https://drive.usercontent.google.com/download?id={key}&confirm=t",
                file=file,
                sha256=self.sha256.get(name),
            )
            for file, name, key in zip(self.files(), FILES, PUBLISHED[self.dataset], strict=True)
        ]

    def files(self) -> list[str]:
        return [f"{self.path or f'raw/graphsaint/{self.dataset}'}/{name}" for name in FILES]

    def stream(self, rest: Rest) -> Stream:
        matrix, features, classes, roles = (rest.folder / file for file in self.files())
        with refusing(matrix, EXPECTED):
            rowptr = _row_pointers(matrix)
            n, entries = len(rowptr) - 1, int(rowptr[-1])
            pieces = partial(_pieces, ArrayIn(matrix, ("indices",)), rowptr)
            counted(pieces(AT_ONCE)).check(matrix, n)
        with refusing(classes, EXPECTED):
            y = _labels(classes, n)
        with refusing(roles, EXPECTED):
            members = json.loads(roles.read_text(encoding="utf-8-sig"))
            split = split_of_ids(roles, {name: members[role] for name, role in ROLES.items()}, n)
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
    """One piece, because a compressed array is read from its beginning."""

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
        X: Any = map_array(path, "r")
    if X.ndim != 2 or len(X) != n:
        raise UserError(f"{path} has the shape {X.shape}, but there are {n:,} vertices.")
    return X  # type: ignore[no-any-return]


def _labels(path: Path, n: int) -> Labels | None:
    """The labels of all vertices; the first item of the map decides between a class and a list of zeros and ones."""
    y: Any = None
    for vertex, label in _items(path):
        if y is None:
            many = isinstance(label, list)
            y = np.full((n, len(label)), NO_LABEL, np.int8) if many else np.full(n, NO_LABEL, np.int64)
        if vertex >= n:
            raise UserError(f"{path} names vertex {vertex}, but there are {n:,}.")
        if np.shape(label) != y.shape[1:]:
            raise UserError(
                f"{path}, vertex {vertex}: {str(label)[:40]} is not of the same kind as those before."
            )
        y[vertex] = label
        if (y[vertex] != label).any():
            raise UserError(f"{path}, vertex {vertex}: {str(label)[:40]} is not made of whole numbers.")
    return y  # type: ignore[no-any-return]


def _items(path: Path) -> Iterator[tuple[int, Any]]:
    """Vertices and classes, one at a time: as Python's own numbers, all of them would not fit."""
    with path.open(encoding="utf-8-sig") as file:
        text, start, ending = file.read(BLOCK).lstrip().removeprefix("{"), 0, ","
        while ending == ",":
            item = ITEM.match(text, start)
            while item is None and (more := file.read(BLOCK)):
                text, start = text[start:] + more, 0
                item = ITEM.match(text, start)
            if item is None:
                raise UserError(f"{path}: {text[start : start + 40]!r} is no vertex with its classes.")
            yield int(item[1]), json.loads(item[2])
            start, ending = item.end(), item[3]
