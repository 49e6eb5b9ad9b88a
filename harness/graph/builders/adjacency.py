"""Writes the adjacency of a store: scatters edges to segments, then sorts the blocks (`graph.builders.entries`).

A segment holds the entries of a chunk of edges, block by block. Segments are kept until all blocks are complete; no
array ever holds the whole graph. If rows and columns have the same order, mirror images are not written: they are made
from the entries of block (J, I) when block (I, J) is sorted, which halves the bytes of the segments.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.graph.builders.entries import (
    KEY_BYTES,
    AsymmetricWeightError,
    Blocking,
    Chunk,
    Keys,
    SortedBlock,
    WeightRule,
    mask_mirrored,
    mirror_entries,
    scatter_entries,
    sort_block,
    sort_block_in_stripes,
)
from harness.graph.builders.job import Step
from harness.graph.builders.store_build import ALL, StoreBuild
from harness.graph.model import EdgeWeights, Ints, StageCounts
from harness.graph.normalise import ADDED_LOOP_WEIGHT, make_asymmetric_weight_error
from harness.graph.sources.stream import MAX_WEIGHT, Edges, Piece

MIN_CHUNK, MAX_CHUNK = 1 << 12, 1 << 20
"""Limits of the edges in a chunk. Larger chunks get fresh pages from the system each time, which costs more."""
MAX_READERS = 16
"""The most pieces of the source that are read concurrently."""
LAYOUT = 2
"""The version of the segments. Staging folders with segments of another version are discarded."""
EDGE_BYTES, ENTRY_BYTES = 128, 24
"""Memory of a worker for each edge that it scatters, and for each entry that it sorts."""
WEIGHTED_ENTRY_BYTES = 72
"""The same for an entry with a weight, which is sorted by a permutation."""


def choose_chunk_size(memory: int) -> int:
    """Return the number of edges in a chunk, given the memory of all workers but not their number."""
    return min(max(memory // (EDGE_BYTES * MAX_READERS), MIN_CHUNK), MAX_CHUNK)


def write_adjacency(build: StoreBuild, order: int) -> None:
    """Write all blocks of an order, and the degrees of its rows."""
    staging = build.staging
    if not staging.has(f"adjacency-{order}"):
        scatter_edges(build, order)
        sort_blocks(build, order)
        staging.save_attributes(f"adjacency-{order}", **_sum_counts(build, order))
    shutil.rmtree(staging.scratch / _get_segment_folder(order), ignore_errors=True)
    staging.write_array(f"degrees/{order}", read_degrees(build, order))


def compute_strengths(build: StoreBuild) -> NDArray[np.float64]:
    """Return the sums of the weights in the rows of order 0. All blocks must be complete."""
    strengths = np.zeros(build.n)
    for i, rows in enumerate(build.block_ranges):
        for j in range(build.grid.vertices):
            name = f"adjacency/0/{i}-{j}"
            row = np.repeat(np.arange(len(rows)), np.diff(build.staging.map_array(f"{name}.rowptr")))
            weights = build.staging.map_array(f"{name}.val")
            strengths[rows.start : rows.stop] += np.bincount(row, weights, len(rows))
    return strengths


def read_stage_counts(build: StoreBuild) -> StageCounts:
    """Return the edge counts of a graph whose order 0 is complete."""
    saved = build.staging.load_attributes("adjacency-0")
    return StageCounts(
        stored=saved["stored"],
        loops=saved["loops"],
        duplicates=saved["stored"] - saved["originals"],
        nnz_sym=saved["nonzeros"] - build.n,
        nnz_adj=saved["nonzeros"],
    )


def scatter_edges(build: StoreBuild, order: int, items: slice = ALL) -> None:
    """Scatter the edges of the selected pieces to segments. The last piece holds a loop for every vertex."""
    maps = build.order.maps
    rows, cols = (maps.rows(order), maps.cols(order)) if maps else (None, None)
    to = Blocking(build.n, build.grid.vertices, rows, cols)
    pieces = list(enumerate(_get_pieces_and_loops(build)))[items]
    jobs = [
        partial(_scatter_piece, build, order, index, to, piece, added=added)
        for index, (piece, added) in pieces
    ]
    build.resources.run_parallel("scattering", jobs, MAX_READERS)


def sort_blocks(build: StoreBuild, order: int, items: slice = ALL) -> None:
    """Sort the blocks in the selected rows of blocks, and count the degrees of their rows."""
    side, segments = build.grid.vertices, _open_segments(build, order)
    block_rows = range(side)[items]
    jobs = [partial(_write_block, build, order, (i, j), segments) for i in block_rows for j in range(side)]
    build.resources.run_parallel("sorting", jobs)
    build.resources.run_parallel("counting", [partial(_write_degrees, build, order, i) for i in block_rows])


def read_degrees(build: StoreBuild, order: int) -> NDArray[np.int32]:
    """Return the number of nonzeros of every row. All blocks must be complete."""
    degrees = np.zeros(build.n, np.int32)
    for i, rows in enumerate(build.block_ranges):
        path = build.staging.scratch / _get_degree_file(order, i)
        if not path.exists():
            raise _make_unfinished_error(build, "settle")
        degrees[rows.start : rows.stop] = np.fromfile(path, np.int32)
    return degrees


def _get_pieces_and_loops(build: StoreBuild) -> list[tuple[Piece, bool]]:
    """Return the pieces of the source, and a piece of added loops, each with a flag that is True for the latter."""
    loops = partial(generate_loops, build.n, build.chunk_edges)
    return [*((piece, False) for piece in build.pieces), (loops, True)]


def _scatter_piece(
    build: StoreBuild, order: int, index: int, to: Blocking, piece: Piece, *, added: bool
) -> None:
    name = f"scatter/{order}/{index}"
    if build.staging.has(name):
        return
    both = not (build.directed or added or _mirrors_while_sorting(build))
    stored = loops = segments = 0
    for source, target, *given in piece():
        weight = given[0] if given else None
        if added and build.weights:
            weight = np.full(len(source), np.nan)
        entries = scatter_entries(source, target, to, both=both, added=added, weight=weight)
        ends = np.concatenate([[0], entries.ends]).astype(np.int64)
        weights = [] if entries.weights is None else [entries.weights]
        build.staging.write_scratch(
            f"{_get_segment_folder(order)}/{index}-{segments}", ends, entries.keys, *weights
        )
        segments += 1
        stored += 0 if added else len(source)
        loops += 0 if added else entries.loops
    build.staging.save_attributes(name, stored=stored, loops=loops, segments=segments)


def generate_loops(n: int, chunk_edges: int) -> Iterator[Edges]:
    """Yield the loops of all vertices, in chunks."""
    for start in range(0, n, chunk_edges):
        vertices = np.arange(start, min(start + chunk_edges, n))
        yield vertices, vertices


class Segment(NamedTuple):
    """A file with the ends of all blocks, then the keys of all blocks, then their weights if edges have weights."""

    path: Path
    ends: Ints
    """0, then the end of every block in the keys."""

    def count(self, block: int) -> int:
        """Return the number of entries of a block."""
        return int(self.ends[block + 1] - self.ends[block])

    def read_keys(self, block: int, out: Keys) -> Keys:
        """Read the keys of a block into the beginning of `out`, and return this part of `out`."""
        keys = out[: self.count(block)]
        self._read_into(keys, int(self.ends[block]))
        return keys

    def read_weights(self, block: int) -> EdgeWeights:
        """Return the weights of the entries of a block."""
        weights = np.empty(self.count(block))
        self._read_into(weights, int(self.ends[-1] + self.ends[block]))
        return weights

    def _read_into(self, out: NDArray[Any], position: int) -> None:
        """Fill an array of 8-byte numbers from a position after the ends."""
        file = os.open(self.path, os.O_RDONLY)  # five times as fast as np.fromfile, and blocks are small
        try:
            size = os.preadv(file, [out.data], self.ends.nbytes + KEY_BYTES * position)
            assert size == out.nbytes, self.path
        finally:
            os.close(file)


def _open_segments(build: StoreBuild, order: int) -> list[Segment]:
    folder, ends = build.staging.scratch / _get_segment_folder(order), build.grid.vertices**2 + 1
    paths = [
        folder / f"{index}-{segment}"
        for index, saved in enumerate(_load_scatter_counts(build, order))
        for segment in range(saved["segments"])
    ]
    return [Segment(path, np.fromfile(path, np.int64, ends)) for path in paths]


def _mirrors_while_sorting(build: StoreBuild) -> bool:
    """Return True if mirror images are made when blocks are sorted: rows and columns have the same order."""
    return not (build.directed or build.order.is_double)


def _load_scatter_counts(build: StoreBuild, order: int) -> list[dict[str, int]]:
    """Return the saved counts of all pieces."""
    names = [f"scatter/{order}/{index}" for index in range(len(_get_pieces_and_loops(build)))]
    if not all(build.staging.has(name) for name in names):
        raise _make_unfinished_error(build, "scatter")
    return [build.staging.load_attributes(name) for name in names]


def _sum_counts(build: StoreBuild, order: int) -> dict[str, int]:
    side = build.grid.vertices
    pieces = _load_scatter_counts(build, order)
    blocks = [
        build.staging.load_attributes(f"adjacency/{order}/{i}-{j}.col.npy")
        for i in range(side)
        for j in range(side)
    ]
    return {key: sum(saved[key] for saved in pieces) for key in ("stored", "loops")} | {
        key: sum(saved[key] for saved in blocks) for key in ("nonzeros", "originals")
    }


def _make_unfinished_error(build: StoreBuild, step: Step) -> UserError:
    whole_step = f"{build.order.choice.build_command} --share {step}:0/1"
    return UserError(
        f"not all jobs of the step {step} have finished. Wait for them, or do the whole step: {whole_step}"
    )


def _get_segment_folder(order: int) -> str:
    return f"keys/{order}"


def _get_degree_file(order: int, i: int) -> str:
    return f"degrees/{order}/{i}"


def _write_block(build: StoreBuild, order: int, at: tuple[int, int], segments: list[Segment]) -> None:
    """Sort a block and write it. `at` is its row and its column in the grid of blocks."""
    (i, j), staging = at, build.staging
    name = f"adjacency/{order}/{i}-{j}"
    if staging.has(f"{name}.col.npy"):
        return
    block = _sort_block(build, order, at, segments)
    staging.write_array(f"{name}.rowptr", block.rowptr)
    if block.val is not None:
        staging.write_array(f"{name}.val", block.val)
    staging.write_array(f"{name}.col", block.col, nonzeros=len(block.col), originals=block.originals)


def _sort_block(build: StoreBuild, order: int, at: tuple[int, int], segments: list[Segment]) -> SortedBlock:
    """Sort a block, at once if it fits in the memory of a worker, else in stripes of rows."""
    (i, j), side = at, build.grid.vertices
    blocks = (i * side + j, *([j * side + i] if _mirrors_while_sorting(build) else []))
    count, rows = sum(segment.count(b) for segment in segments for b in blocks), len(build.block_ranges[i])
    weights = build.weights
    rule = WeightRule(ADDED_LOOP_WEIGHT[weights], symmetric=not build.directed) if weights else None
    max_keys = build.memory_per_worker // (WEIGHTED_ENTRY_BYTES if weights else ENTRY_BYTES)
    try:
        if count <= max_keys:
            keys, values = _read_block(segments, blocks, count, diagonal=i == j, weighted=bool(weights))
            block = sort_block(keys, rows, values, rule)
        else:
            read_chunks = partial(_read_chunks, segments, blocks, diagonal=i == j, weighted=bool(weights))
            block = sort_block_in_stripes(read_chunks, rows, max_keys, rule)
    except AsymmetricWeightError as error:
        raise _make_weight_error(build, order, at, error) from None
    if block.val is not None and not (np.abs(block.val) <= MAX_WEIGHT).all():
        raise UserError(
            f"dataset {build.contents.card.name}: the weights of an edge that occurs several times add up to more "
            f"than {MAX_WEIGHT:.2g}. Scale all weights down."
        )
    return block


def _make_weight_error(
    build: StoreBuild, order: int, at: tuple[int, int], error: AsymmetricWeightError
) -> UserError:
    """Return the error for an entry of a block, with the original numbers of its vertices."""
    row, col, forward, backward = error.args
    target, source = build.block_ranges[at[0]].start + row, build.block_ranges[at[1]].start + col
    if maps := build.order.maps:
        target = int(maps.rows(order).values_at(torch.tensor([target]))[0])
        source = int(maps.cols(order).values_at(torch.tensor([source]))[0])
    return make_asymmetric_weight_error(source, target, forward, backward)


def _read_block(
    segments: list[Segment], blocks: Sequence[int], count: int, *, diagonal: bool, weighted: bool
) -> Chunk:
    """Return all entries of a block, in the order of the source."""
    keys, weights, filled = np.empty(count, np.uint64), np.empty(count) if weighted else None, 0
    for segment in segments:
        for is_mirrored, block in enumerate(blocks):
            chunk = _read_chunk(segment, block, keys[filled:], bool(is_mirrored), diagonal, weighted)
            stop = filled + len(chunk[0])
            if weights is not None:
                weights[filled:stop] = chunk[1]
            filled = stop
    return keys[:filled], None if weights is None else weights[:filled]


def _read_chunks(
    segments: list[Segment], blocks: Sequence[int], *, diagonal: bool, weighted: bool
) -> Iterator[Chunk]:
    """Yield the entries of a block and, if there are two blocks, the mirror images of the second, by segment."""
    for segment in segments:
        for is_mirrored, block in enumerate(blocks):
            out = np.empty(segment.count(block), np.uint64)
            yield _read_chunk(segment, block, out, bool(is_mirrored), diagonal, weighted)


def _read_chunk(
    segment: Segment, block: int, out: Keys, is_mirrored: bool, diagonal: bool, weighted: bool
) -> Chunk:
    """Read the entries of a block, or their mirror images, with the keys at the beginning of `out`."""
    keys = segment.read_keys(block, out)
    weights = segment.read_weights(block) if weighted else None
    if not is_mirrored:
        return keys, weights
    if weights is not None:
        weights = weights[mask_mirrored(keys, diagonal=diagonal)]
    return mirror_entries(keys, diagonal=diagonal), weights


def _write_degrees(build: StoreBuild, order: int, i: int) -> None:
    """Write the degrees of a row of blocks, from its row pointers."""
    if (build.staging.scratch / _get_degree_file(order, i)).exists():
        return
    degrees = np.zeros(len(build.block_ranges[i]), np.int32)
    for j in range(build.grid.vertices):
        degrees += np.diff(build.staging.map_array(f"adjacency/{order}/{i}-{j}.rowptr")).astype(np.int32)
    build.staging.write_scratch(_get_degree_file(order, i), degrees)
