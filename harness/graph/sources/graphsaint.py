"""Datasets as the authors of GraphSAINT publish them: Amazon's products, Yelp, Flickr, and a smaller Reddit.

adj_full.npz is a matrix as scipy saves it, feats.npy holds the features, class_map.json the class of every vertex or a
0 or 1 for each class, role.json the training, validation and test vertices. Row i of the matrix has the edges from
vertex i.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.base.errors import UserError
from harness.base.files import map_array
from harness.graph.model import NO_LABEL, Floats, Ints, Labels
from harness.graph.sources.npz_arrays import ArrayRef, read_array, read_header, read_in_chunks
from harness.graph.sources.read_errors import convert_read_errors
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.source import ReadOptions, Source
from harness.graph.sources.splits import make_split_from_ids
from harness.graph.sources.stream import CHUNK_EDGES, Edges, EdgeStream, Piece, count_edges

EXPECTED = "a folder of GraphSAINT with adj_full.npz, feats.npy, class_map.json and role.json"
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
"""The ids of the files on Google Drive, by dataset; no checksums are published."""
ROLES = {"train": "tr", "valid": "va", "test": "te"}
ITEM_PATTERN = re.compile(r'\s*"(\d+)"\s*:\s*(\[[^\[\]]*\]|[^\[\],}]+?)\s*([,}])')
"""An item of class_map.json: the vertex, its class or classes, and the separator or the end of the map."""
BLOCK = 1 << 24
"""The number of characters read at a time."""


class GraphSaint(Source):
    """A published dataset, or a folder of the same files."""

    kind: Literal["graphsaint"]
    dataset: Literal["amazon", "flickr", "yelp", "reddit2"] | None = None
    path: str | None = None
    """The folder of the files; by default they are fetched."""
    sha256: dict[str, str] = {}
    """The checksums of the published files, by name."""

    def list_remote_files(self) -> list[RemoteFile]:
        if self.path is not None or self.dataset is None:
            return []
        return [
            RemoteFile(
                url=f"https://drive.usercontent.google.com/download?id={key}&confirm=t",
                file=file,
                sha256=self.sha256.get(name),
            )
            for file, name, key in zip(self.list_files(), FILES, PUBLISHED[self.dataset], strict=True)
        ]

    def list_files(self) -> list[str]:
        return [f"{self.path or f'raw/graphsaint/{self.dataset}'}/{name}" for name in FILES]

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        matrix, features, classes, roles = (options.folder / file for file in self.list_files())
        with convert_read_errors(matrix, EXPECTED):
            rowptr = _read_rowptr(matrix)
            n, entries = len(rowptr) - 1, int(rowptr[-1])
            pieces = partial(_cut_pieces, ArrayRef(matrix, ("indices",)), rowptr)
            count_edges(pieces(CHUNK_EDGES)).check(matrix, n)
        with convert_read_errors(classes, EXPECTED):
            y = _read_labels(classes, n)
        with convert_read_errors(roles, EXPECTED):
            members = json.loads(roles.read_text(encoding="utf-8-sig"))
            split = make_split_from_ids(roles, {name: members[role] for name, role in ROLES.items()}, n)
        return EdgeStream(n, entries, pieces, partial(_map_features, features, n), y, split)


def _read_rowptr(matrix: Path) -> Ints:
    shape = read_array(ArrayRef(matrix, ("shape",)))
    rowptr = read_array(ArrayRef(matrix, ("indptr",))).astype(np.int64)
    stored = read_header(ArrayRef(matrix, ("indices",))).shape[0]
    if not (shape[0] == shape[1] == len(rowptr) - 1):
        raise UserError(
            f"{matrix}: a matrix of {shape[0]} x {shape[1]} with {len(rowptr)} row pointers. Expected n x n, and "
            "n + 1."
        )
    if rowptr[0] != 0 or rowptr[-1] != stored or (np.diff(rowptr) < 0).any():
        raise UserError(f"{matrix}: its row pointers do not match its {stored:,} entries.")
    return rowptr


def _cut_pieces(columns: ArrayRef, rowptr: Ints, at_once: int) -> list[Piece]:
    """Return one piece: a compressed array can only be read from its beginning."""

    def read_edges() -> Iterator[Edges]:
        start, entries = 0, int(rowptr[-1])
        for targets in read_in_chunks(columns, 0, entries, at_once):
            stop = start + len(targets)
            first, last = np.searchsorted(rowptr, [start, stop - 1], side="right") - 1
            lengths = np.diff(rowptr[first : last + 2].clip(start, stop))
            yield np.repeat(np.arange(first, last + 1), lengths), targets.astype(np.int64)
            start = stop

    return [read_edges]


def _map_features(path: Path, n: int) -> Floats:
    with convert_read_errors(path, EXPECTED):
        X: Any = map_array(path, "r")
    if X.ndim != 2 or len(X) != n:
        raise UserError(f"{path} has the shape {X.shape}, but there are {n:,} vertices.")
    return X  # type: ignore[no-any-return]


def _read_labels(path: Path, n: int) -> Labels | None:
    """Return the labels of all vertices. The first item decides between a class and a list of zeros and ones."""
    y: Any = None
    for vertex, label in _read_items(path):
        if y is None and isinstance(label, list):
            y = np.full((n, len(label)), NO_LABEL, np.int8)
        elif y is None:
            y = np.full(n, NO_LABEL, np.int64)
        if vertex >= n:
            raise UserError(f"{path} has vertex {vertex}, but there are {n:,} vertices.")
        if np.shape(label) != y.shape[1:]:
            raise UserError(
                f"{path}, vertex {vertex}: {str(label)[:40]} is not of the same kind as earlier labels."
            )
        y[vertex] = label
        if (y[vertex] != label).any():
            raise UserError(f"{path}, vertex {vertex}: {str(label)[:40]} does not consist of integers.")
    return y  # type: ignore[no-any-return]


def _read_items(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield vertices and classes one at a time: as Python objects, all of them would not fit in memory."""
    with path.open(encoding="utf-8-sig") as file:
        text, start, ending = file.read(BLOCK).lstrip().removeprefix("{"), 0, ","
        while ending == ",":
            item = ITEM_PATTERN.match(text, start)
            while item is None and (more := file.read(BLOCK)):
                text, start = text[start:] + more, 0
                item = ITEM_PATTERN.match(text, start)
            if item is None:
                raise UserError(f"{path}: {text[start : start + 40]!r} is not a vertex with its classes.")
            yield int(item[1]), json.loads(item[2])
            start, ending = item.end(), item[3]
