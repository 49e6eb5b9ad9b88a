"""What a store has of the vertices: labels, split and features in the order of its rows."""

from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import Tensor

from harness.ranges import split
from harness.store.adjacency import degrees_of
from harness.store.share import EVERYTHING
from harness.store.task import Task

PER_NUMBER = 48
"""Bytes that a worker needs for one feature while it is made."""


AT_ONCE = 1 << 22
"""Vertices that are moved at a time."""


def put_vertices(task: Task) -> None:
    """All of it, when all blocks are there."""
    order = task.order
    degrees = _degrees(task)
    y, parts = task.contents.vertices(degrees)
    for number in (0, 1) if order.double else (0,):
        for name, whole in (("labels", y), ("split", parts), ("degrees", degrees)):
            _put_moved(task, f"{name}/{number}", whole, number)
    _put_features(task, y, EVERYTHING)


def put_features(task: Task, some: slice) -> None:
    """The features of these rows of blocks."""
    _put_features(task, task.contents.vertices(_degrees(task)).y, some)


def _put_features(task: Task, y: Tensor, some: slice) -> None:
    rows = range(task.grid.vertices)[some]
    task.means.in_parallel("writing features", [partial(_put_rows, task, i, y) for i in rows])


def _degrees(task: Task) -> Tensor:
    """In the graph's own order."""
    moved, maps = torch.from_numpy(degrees_of(task, 0)), task.order.maps
    if maps is None:
        return moved
    degrees = torch.empty_like(moved)
    for some in _runs(task):
        degrees[maps.rows(0).at(some)] = moved[some.start : some.stop]
    return degrees


def _put_moved(task: Task, name: str, whole: Tensor, order: int) -> None:
    """A vector in this order of the rows, unless it is there."""
    if task.work.noted(f"{name}.npy"):
        return
    maps = task.order.maps
    with task.work.rows(name, tuple(whole.shape), whole.numpy().dtype) as write:
        for some in _runs(task):
            moved = whole[maps.rows(order).at(some)] if maps else whole[some.start : some.stop]
            write(moved.numpy())


def _runs(task: Task) -> list[range]:
    """All positions, some at a time."""
    return [range(start, min(start + AT_ONCE, task.n)) for start in range(0, task.n, AT_ONCE)]


def _put_rows(task: Task, i: int, y: Tensor) -> None:
    """The features of a block of rows, some rows at a time."""
    rows, width, maps = task.ranges[i], task.contents.width, task.order.maps
    cuts = split(width, task.grid.features)
    if task.work.noted(f"features/{i}-{len(cuts) - 1}.npy"):
        return
    step = max(1, task.share // (PER_NUMBER * max(width, 1)))
    with ExitStack() as files:
        write = [
            files.enter_context(task.work.rows(f"features/{i}-{j}", (len(rows), len(cols)), np.float32))
            for j, cols in enumerate(cuts)
        ]
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            some = range(start, stop) if maps is None else maps.q.at(range(start, stop))
            X_NF = task.contents.features(some, y).numpy()
            for put, cols in zip(write, cuts, strict=True):
                put(X_NF[:, cols.start : cols.stop])
