"""What a store has of the vertices: labels, split and features in the order of its rows, and the maps of that order."""

from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import Tensor

from harness.ranges import split
from harness.store.task import Task

PER_NUMBER = 32
"""Bytes that a worker needs for one feature while it is made."""


def put_vertices(task: Task) -> None:
    """All of it; the degrees of order 0 are there."""
    work, maps = task.work, task.order.maps
    degrees = torch.from_numpy(np.array(work.array("degrees/0")))
    if maps:
        degrees = torch.empty_like(degrees).index_put_((maps.rows(0),), degrees)
    y, parts = task.contents.vertices(degrees)
    for order in (0, 1) if task.order.double else (0,):
        for name, whole in (("labels", y), ("split", parts), ("degrees", degrees)):
            work.put(f"{name}/{order}", (whole[maps.rows(order)] if maps else whole).numpy())
    if maps:
        work.put("orders/p", maps.p.numpy())
    if maps and task.order.double:
        work.put("orders/q", maps.q.numpy())
    blocks = range(task.grid.vertices)
    task.means.in_parallel("writing features", [partial(_put_features, task, i, y) for i in blocks])


def _put_features(task: Task, i: int, y: Tensor) -> None:
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
            some = maps.q[start:stop] if maps else range(start, stop)
            X_NF = task.contents.features(some, y).numpy()
            for put, cols in zip(write, cuts, strict=True):
                put(X_NF[:, cols.start : cols.stop])
