"""The Reddit posts dataset of GraphSAGE, as published by DGL; not the smaller Reddit2.

The archive holds reddit_graph.npz, a symmetric matrix (row, col, shape), and reddit_data.npz (feature, label,
node_types).
"""

from functools import partial
from typing import Literal

import numpy as np

from harness.graph.model import Floats
from harness.graph.sources.npz_arrays import ArrayRef, map_extracted, read_array, read_edges, read_header
from harness.graph.sources.read_errors import convert_read_errors
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.source import ReadOptions, Source
from harness.graph.sources.stream import CHUNK_EDGES, EdgeStream, Piece, count_edges

EXPECTED = "the archive with reddit_graph.npz and reddit_data.npz"
GRAPH, DATA = "reddit_graph.npz", "reddit_data.npz"


class Reddit(Source):
    """The archive published by DGL."""

    kind: Literal["reddit"]
    sha256: str | None = None

    def list_remote_files(self) -> list[RemoteFile]:
        url = "https://data.dgl.ai/dataset/reddit.zip"
        return [RemoteFile(url=url, file="raw/reddit/reddit.zip", sha256=self.sha256)]

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        path = options.folder / self.list_remote_files()[0].file
        with convert_read_errors(path, EXPECTED):
            row, col = ArrayRef(path, (GRAPH, "row")), ArrayRef(path, (GRAPH, "col"))
            (entries,), n = read_header(row).shape, int(read_array(ArrayRef(path, (GRAPH, "shape")))[0])
            pieces = partial(_cut_pieces, row, col, entries)
            count_edges(pieces(CHUNK_EDGES)).check(path, n)
            y = read_array(ArrayRef(path, (DATA, "label"))).astype(np.int64).reshape(-1)
            split = read_array(ArrayRef(path, (DATA, "node_types"))).astype(np.uint8).reshape(-1)

        def read_features() -> Floats:
            return map_extracted(ArrayRef(path, (DATA, "feature")), path.with_suffix(".feature.npy"))

        return EdgeStream(n, entries, pieces, read_features, y, split)


def _cut_pieces(row: ArrayRef, col: ArrayRef, entries: int, at_once: int) -> list[Piece]:
    return [partial(read_edges, (row, col), (0, 0), entries, at_once)]
