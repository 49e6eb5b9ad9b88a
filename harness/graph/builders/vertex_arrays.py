"""Writes the data of the vertices to a store: labels, split, degrees and features, in the order of its rows."""

from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import Tensor

from harness.base.ranges import split_range
from harness.graph.builders.adjacency import compute_strengths, read_degrees
from harness.graph.builders.store_build import ALL, StoreBuild

FEATURE_BYTES = 48
"""Memory of a worker for each feature value that it makes."""
CHUNK_VERTICES = 1 << 22
"""The number of vertices that are permuted at a time."""


def write_vertex_arrays(build: StoreBuild) -> None:
    """Write labels, split, degrees and features. All blocks must be complete."""
    orders = (0, 1) if build.order.is_double else (0,)
    degrees = _load_original_degrees(build)
    y, parts = build.contents.make_vertex_data(degrees)
    vectors = {"labels": y, "split": parts, "degrees": degrees}
    if build.weights == "normalised":
        vectors["strengths"] = _restore_original_order(build, torch.from_numpy(compute_strengths(build)))
    for name, vector in vectors.items():
        for order in orders:
            _write_vector(build, f"{name}/{order}", vector, order)
    _write_features(build, y, ALL)


def write_features(build: StoreBuild, items: slice) -> None:
    """Write the features of the selected rows of blocks."""
    _write_features(build, build.contents.make_vertex_data(_load_original_degrees(build)).y, items)


def _write_features(build: StoreBuild, y: Tensor, items: slice) -> None:
    block_rows = range(build.grid.vertices)[items]
    build.resources.run_parallel(
        "writing features", [partial(_write_feature_rows, build, i, y) for i in block_rows]
    )


def _load_original_degrees(build: StoreBuild) -> Tensor:
    """Return the degrees in the graph's original order."""
    return _restore_original_order(build, torch.from_numpy(read_degrees(build, 0)))


def _restore_original_order(build: StoreBuild, vector: Tensor) -> Tensor:
    """Permute a vector from the rows of order 0 to the graph's original order."""
    maps = build.order.maps
    if maps is None:
        return vector
    original = torch.empty_like(vector)
    for positions in _get_chunks(build):
        original[maps.rows(0).values_at(positions)] = vector[positions.start : positions.stop]
    return original


def _write_vector(build: StoreBuild, name: str, vector: Tensor, order: int) -> None:
    """Write a vector in the row order `order`, unless it is already complete."""
    if build.staging.has(f"{name}.npy"):
        return
    maps = build.order.maps
    with build.staging.open_array(name, tuple(vector.shape), vector.numpy().dtype) as write:
        for positions in _get_chunks(build):
            rows = maps.rows(order).values_at(positions) if maps else slice(positions.start, positions.stop)
            write(vector[rows].numpy())


def _get_chunks(build: StoreBuild) -> list[range]:
    """Return all positions, in ranges of at most CHUNK_VERTICES."""
    starts = range(0, build.n, CHUNK_VERTICES)
    return [range(start, min(start + CHUNK_VERTICES, build.n)) for start in starts]


def _write_feature_rows(build: StoreBuild, i: int, y: Tensor) -> None:
    """Write the features of row i of the block grid, a few rows at a time."""
    rows, width, maps = build.block_ranges[i], build.contents.width, build.order.maps
    column_ranges = split_range(width, build.grid.features)
    if build.staging.has(f"features/{i}-{len(column_ranges) - 1}.npy"):
        return
    step = max(1, build.memory_per_worker // (FEATURE_BYTES * max(width, 1)))
    with ExitStack() as files:
        writers = [
            files.enter_context(
                build.staging.open_array(f"features/{i}-{j}", (len(rows), len(cols)), np.float32)
            )
            for j, cols in enumerate(column_ranges)
        ]
        for start in range(rows.start, rows.stop, step):
            positions = range(start, min(start + step, rows.stop))
            vertices = positions if maps is None else maps.q.values_at(positions)
            X_NF = build.contents.make_features(vertices, y).numpy()
            for write, cols in zip(writers, column_ranges, strict=True):
                write(X_NF[:, cols.start : cols.stop])
