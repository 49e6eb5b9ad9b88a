"""The partition of a dataset: read from a file of the user, drawn, or computed once and kept.

Computing a partition may take longer than all other steps of a build. So a computed partition is kept beside the
stores, as the folder partitions/computed/NAME-METHOD-PARTS-sSEED-HASH of one array, or two for a vertex cut, and a
record. The hash stands for the graph's structure: a changed graph never meets an old partition. Of several processes
that need a partition at once, as all ranks that open a graph in memory do, one computes it under a lock and the others
read the folder. A folder that does not fit is refused and not repaired.

Several partitions of one graph are computed side by side in forked processes, which share the memory of the graph.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Never, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from harness.children import die_with_parent
from harness.errors import RunError, UserError
from harness.files import (
    DATASETS,
    HashedFile,
    atomic_folder,
    check_free_space,
    explain_os_errors,
    write_synced,
)
from harness.graph.model import Ints
from harness.graph.partition import VERSION, Method, Partition, in_order, parts_and_report, random_parts
from harness.graph.partitioners import COMPUTED_FROM_EDGES, WITH_THREADS, VertexCut, engine
from harness.kernels.csr import Csr
from harness.locks import acquire_lock
from harness.sources.stream import Piece
from harness.spec.dataset import DatasetChoice
from harness.store.adjacency import LARGEST, loops
from harness.store.compose import Contents
from harness.store.entries import BYTES, Blocking, scatter, settle
from harness.store.manifest import FileRecord
from harness.store.task import MakePartition, Means
from harness.validation import Frozen, validate

FOLDER = "partitions"
RECORD = "partition.json"
ARRAY, EDGES = "part.npy", "edges.npy"


class PartitionRecord(Frozen):
    """The record beside a kept partition: its graph, its method, and the checksum of its array."""

    name: str
    method: str
    parts: int
    seed: int
    structure: str
    engine: str
    """The library and its version. Another version may cut otherwise; kept partitions stay valid."""
    array: FileRecord
    edges: FileRecord | None = None
    """The part of every nonzero, of a vertex cut."""
    report: dict[str, JsonValue] = {}
    """The report of the method on its search."""


def partition_of(
    choice: DatasetChoice,
    n: int,
    folder: Path,
    graph: Callable[[], Csr],
    allow: Callable[[Csr], object] = lambda _: None,
) -> Partition | None:
    """The partition of n vertices, None for a choice of blocks.

    Engines alone call `graph`, which is in its own order, and ask `allow` before partitioning it.
    """
    if not choice.partitioned:
        return None
    check_parts(choice, n)
    if choice.file is not None:
        (path,) = partition_files(choice, folder).values()
        part = torch.from_numpy(read_partition(path, n, choice.parts))
    elif choice.partition in COMPUTED_FROM_EDGES:
        return _computed(choice, graph(), folder, allow)
    else:
        part = random_parts(n, choice.parts, choice.seed)
    return in_order(part, choice.parts)


def check_parts(choice: DatasetChoice, n: int) -> None:
    """Refuses more parts than vertices."""
    if choice.parts > n:
        raise UserError(
            f"dataset {choice.name} has {n:,} vertices, so it cannot be cut into parts = {choice.parts}: "
            f"1 to {n} are accepted."
        )


def partition_files(choice: DatasetChoice, folder: Path) -> dict[str, Path]:
    """The partition file of a choice, by its name under the data folder."""
    if choice.file is None:
        return {}
    path = folder / FOLDER / choice.file
    check_there(path)
    return {f"{FOLDER}/{choice.file}": path}


Allow = Callable[[Csr], object]
"""Refuses to partition a graph that would take too much memory."""


def _computed(choice: DatasetChoice, A: Csr, folder: Path, allow: Allow) -> Partition:
    """The partition of a graph, after computing and keeping it if no process has."""
    structure = _structure(A)
    path = _path(choice, folder, structure)
    _compute(choice, A, path, structure, allow)
    return _read(path, choice, structure, A)


def _path(choice: DatasetChoice, folder: Path, structure: str) -> Path:
    name = f"{choice.name}-{choice.partition}-{choice.parts}-s{choice.seed}-{structure[:10]}"
    return folder / FOLDER / "computed" / name


def _compute(choice: DatasetChoice, A: Csr, path: Path, structure: str, allow: Allow) -> None:
    """Keeps a partition, unless it is kept. On a file system without locks, the first of several processes keeps."""
    if path.exists():
        return
    with explain_os_errors(path, DATASETS), acquire_lock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            allow(A)
            part, report = parts_and_report(A, cast(Method, choice.partition), choice.parts, choice.seed)
            _keep(path, choice, structure, part, report)


def compute_side_by_side(
    choices: Sequence[DatasetChoice], A: Csr, folder: Path, means: Means, at_once: int
) -> list[MakePartition]:
    """Computes and keeps the partitions of one graph; returns the functions that read them.

    So many processes compute at a time; a method with threads of its own computes one partition after the other, here.
    """
    structure = _structure(A)
    paths = [_path(choice, folder, structure) for choice in choices]
    compute: dict[bool, list[Callable[[], None]]] = {True: [], False: []}
    for choice, path in zip(choices, paths, strict=True):
        one = partial(_compute, choice, A, path, structure, lambda _: None)
        forked = at_once > 1 and choice.partition not in WITH_THREADS and not path.exists()
        compute[forked].append(partial(_in_a_process, one) if forked else one)
    means.in_parallel("partitioning", compute[True], at_once)
    means.in_parallel("partitioning", compute[False], 1)
    return [partial(_read, path, choice, structure, A) for choice, path in zip(choices, paths, strict=True)]


def _in_a_process(act: Callable[[], None]) -> None:
    """Acts in a forked process, and raises its error here. A process that was killed is an error too."""
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_act, args=(act, sender, os.getpid()), daemon=True)
    process.start()
    process.join()
    if receiver.poll():
        raise receiver.recv()
    if process.exitcode:
        raise RunError(
            f"a process that computed a partition ended with {process.exitcode}. If memory was short, compute fewer at "
            "a time (--workers)."
        )


def _act(act: Callable[[], None], sender: Connection, parent: int) -> None:
    """Acts, sends an error, and ends the process, whose normal end would wait for threads that the fork lacks."""
    die_with_parent(parent)()
    torch.set_num_threads(1)
    try:
        act()
    except (UserError, RunError) as error:
        sender.send(error)
    os._exit(0)


def _keep(
    path: Path, choice: DatasetChoice, structure: str, made: Tensor | VertexCut, report: dict[str, Any]
) -> None:
    part, edges = (made.part, made.edges) if isinstance(made, VertexCut) else (made, None)
    check_free_space(path, 4 * (len(part) + (0 if edges is None else len(edges))) + 4096)
    with atomic_folder(path, RECORD, DATASETS) as unfinished:
        kept = PartitionRecord(
            **_expected(choice, structure),
            engine=engine(choice.partition),
            array=_written(unfinished / ARRAY, part),
            edges=None if edges is None else _written(unfinished / EDGES, edges),
            report=report,
        )
        text = json.dumps(kept.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
        write_synced(unfinished / RECORD, text.encode())


def _written(path: Path, numbers: Tensor) -> FileRecord:
    with path.open("wb") as file:
        hashed = HashedFile(file)
        np.lib.format.write_array(hashed, numbers.numpy().astype(np.int32))
    return FileRecord(bytes=hashed.bytes, sha256=hashed.sha256.hexdigest())


def _expected(choice: DatasetChoice, structure: str) -> dict[str, Any]:
    return {
        "name": choice.name,
        "method": choice.partition,
        "parts": choice.parts,
        "seed": choice.seed,
        "structure": structure,
    }


def _read(path: Path, choice: DatasetChoice, structure: str, A: Csr) -> Partition:
    kept = _record(path, choice)
    for key, value in _expected(choice, structure).items():
        if getattr(kept, key) != value:
            _refuse(path / RECORD, f"says {key} = {getattr(kept, key)!r}, and not {value!r}", choice)
    partition = in_order(_parts(path / ARRAY, kept.array, choice, A.rows), choice.parts)
    if kept.edges is None:
        return partition
    edges = _parts(path / EDGES, kept.edges, choice, A.nnz)
    return replace(partition, edges=edges, copies=tuple(cast(list[int], kept.report["copies"])))


def _parts(path: Path, record: FileRecord, choice: DatasetChoice, size: int) -> Tensor:
    """The parts of so many vertices or nonzeros."""
    part = _array(path, record, choice)
    if part.shape != (size,) or part.dtype != np.int32:
        _refuse(path, f"holds {part.dtype} of the shape {part.shape}, not {size} of int32", choice)
    if part.min() < 0 or part.max() >= choice.parts:
        _refuse(path, f"has parts {part.min()} to {part.max()}, not 0 to {choice.parts - 1}", choice)
    return torch.from_numpy(part)


def _record(path: Path, choice: DatasetChoice) -> PartitionRecord:
    try:
        return validate(PartitionRecord, json.loads((path / RECORD).read_bytes()), RECORD)
    except (OSError, ValueError, RecursionError) as error:
        _refuse(path / RECORD, f"cannot be read: {error}", choice)


def _array(path: Path, record: FileRecord, choice: DatasetChoice) -> NDArray[Any]:
    try:
        content = path.read_bytes()
        if (len(content), hashlib.sha256(content).hexdigest()) != (record.bytes, record.sha256):
            _refuse(path, f"was altered: it is not what {RECORD} says", choice)
        return cast(NDArray[Any], np.load(path, allow_pickle=False))
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", choice)


def _refuse(path: Path, reason: str, choice: DatasetChoice) -> Never:
    raise UserError(
        f"{path} {reason}. Delete the folder {path.parent} and build again: {choice.build_command}"
    ) from None


def _structure(A: Csr) -> str:
    """A digest of the places of the nonzeros, and of the version of the partition methods."""
    digest = hashlib.sha256(f"partition {VERSION}".encode())
    for tensor in (A.rowptr, A.col):
        digest.update(f"{tensor.dtype} {len(tensor)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


# A partition file of the user: one part number a line, as METIS, PaToH and KaHyPar write partitions.
#
# Line v is the part of vertex v, in the order of the dataset's vertices before any permutation.

EXPECTED = "one part number a line, in the order of the dataset's vertices"


def read_partition(path: Path, n: int, parts: int) -> Ints:
    """The part of every vertex, (n,)."""
    check_there(path)
    part = _numbers(path)
    if len(part) != n:
        raise UserError(
            f"{path} holds {len(part):,} lines, but the graph has {n:,} vertices: it is a partition of another graph. "
            f"Expected {EXPECTED}."
        )
    wrong = np.flatnonzero((part < 0) | (part >= parts))
    if len(wrong):
        raise UserError(
            f"{path}, line {wrong[0] + 1}: {part[wrong[0]]} is not one of the parts 0 .. {parts - 1}. Correct the "
            "file, or ask for as many parts as it has."
        )
    return part


def check_there(path: Path) -> None:
    """Refuses a partition whose file does not exist."""
    if not path.is_file():
        raise UserError(
            f"{path} is no file. A partition of your own is read from this path: {EXPECTED}. Write the file, or choose "
            "another partition."
        )


def _numbers(path: Path) -> Ints:
    import pandas as pd  # half a second that opening a drawn graph does not need

    try:
        table = pd.read_csv(path, header=None, dtype=np.int64, skip_blank_lines=False)
    except pd.errors.EmptyDataError:
        return np.zeros(0, dtype=np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read: {_fault(path) or error}. Expected {EXPECTED}.") from None
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} numbers a line. Expected {EXPECTED}.")
    return table[0].to_numpy(copy=True)


def _fault(path: Path) -> str:
    """The first line that is no number."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not re.fullmatch(r"-?\d{1,18}", line.strip()):
                return f"line {number} is {line.strip()[:40]!r}"
    return ""


# The places of all nonzeros of a graph, whole in memory, for partition methods: a store of one block
# (`harness.store.entries`).

PER_ENTRY, PER_VERTEX = BYTES + 8, 16
"""The most bytes of `structure`: keys beside columns, and row pointers of 32 bits beside those of 64."""


def bytes_of_structure(contents: Contents) -> int:
    """The most bytes that `structure` takes."""
    return PER_ENTRY * contents.most_entries + PER_VERTEX * contents.n


def structure(contents: Contents) -> Csr:
    """The pattern of A, in the graph's own order; its values mean nothing and take no memory."""
    n, keys, filled = contents.n, np.empty(contents.most_entries, np.uint64), 0
    pieces: list[Piece] = [*contents.stream.pieces(LARGEST), partial(loops, n, LARGEST)]
    for piece in pieces:
        for source, target, *_ in piece():  # a loop is its own mirror image
            some = scatter(source, target, Blocking(n, 1), both=not contents.card.directed).keys
            keys[filled : filled + len(some)] = some
            filled += len(some)
    block = settle(keys[:filled], n)
    rowptr, col = torch.from_numpy(block.rowptr).long(), torch.from_numpy(block.col)
    return Csr(rowptr, col, torch.ones((), dtype=torch.bool).expand(len(col)), n)
