"""Posts of Reddit, as the authors of GraphSAGE made them and DGL publishes them; not the smaller Reddit2.

The archive holds reddit_graph.npz, a symmetric matrix (row, col, shape), and reddit_data.npz (feature, label,
node_types).
"""

from functools import partial
from typing import Literal

import numpy as np

from harness.graph.model import Floats
from harness.sources.arrays import ArrayIn, edges_of, head_of, mapped, whole_array
from harness.sources.refusal import refusing
from harness.sources.remote import RemoteFile
from harness.sources.source import Rest, Source
from harness.sources.stream import AT_ONCE, Piece, Stream, counted

EXPECTED = "the archive with reddit_graph.npz and reddit_data.npz"
GRAPH, DATA = "reddit_graph.npz", "reddit_data.npz"


class Reddit(Source):
    """The published archive."""

    kind: Literal["reddit"]
    sha256: str | None = None

    def remotes(self) -> list[RemoteFile]:
        url = "https://data.dgl.ai/dataset/reddit.zip"
        return [RemoteFile(url=url, file="raw/reddit/reddit.zip", sha256=self.sha256)]

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.remotes()[0].file
        with refusing(path, EXPECTED):
            row, col = ArrayIn(path, (GRAPH, "row")), ArrayIn(path, (GRAPH, "col"))
            (entries,), n = head_of(row).shape, int(whole_array(ArrayIn(path, (GRAPH, "shape")))[0])
            pieces = partial(_pieces, row, col, entries)
            counted(pieces(AT_ONCE)).check(path, n)
            y = whole_array(ArrayIn(path, (DATA, "label"))).astype(np.int64).reshape(-1)
            split = whole_array(ArrayIn(path, (DATA, "node_types"))).astype(np.uint8).reshape(-1)

        def features() -> Floats:
            return mapped(ArrayIn(path, (DATA, "feature")), path.with_suffix(".feature.npy"))

        return Stream(n, entries, pieces, features, y, split)


def _pieces(row: ArrayIn, col: ArrayIn, entries: int, at_once: int) -> list[Piece]:
    return [partial(edges_of, (row, col), (0, 0), entries, at_once)]
