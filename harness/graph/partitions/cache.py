"""The cache of computed partitions.

Computing a partition may take longer than the rest of a build. So computed partitions are cached next to the stores, in
folders partitions/computed/NAME-METHOD-PARTS-sSEED-HASH that hold one array (two for a vertex cut) and a record. The
hash identifies the structure of the graph, so a changed graph never gets an old partition. If several processes need a
partition at once, one computes it under a lock and the others read it. A folder that does not match is refused, not
repaired.

Several partitions of one graph are computed in parallel by forked processes, which share the memory of the graph.
"""

import hashlib
import json
import os
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

from harness.base.children import die_with_parent
from harness.base.errors import RunError, UserError
from harness.base.files import (
    DATASETS,
    HashedFile,
    atomic_folder,
    check_free_space,
    explain_os_errors,
    write_synced,
)
from harness.base.locks import acquire_lock
from harness.base.validation import Frozen, validate
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.store_build import MakePartition
from harness.graph.partitions.file import FOLDER
from harness.graph.partitions.libra import VertexCut
from harness.graph.partitions.partition import (
    Method,
    Partition,
    compute_parts_with_report,
    order_by_part,
)
from harness.graph.partitions.partitioners import USE_ALL_THREADS, VERSION, get_library_version
from harness.graph.store.manifest import FileRecord
from harness.kernels.csr import Csr
from harness.spec.dataset import DatasetChoice

RECORD = "partition.json"
ARRAY, EDGES = "part.npy", "edges.npy"


class PartitionRecord(Frozen):
    """What partition.json holds: the graph, the method, and the checksums of the arrays."""

    name: str
    method: str
    parts: int
    seed: int
    structure: str
    engine: str
    """The library and its version. Another version may partition differently; cached partitions stay valid."""
    array: FileRecord
    edges: FileRecord | None = None
    """The part of every nonzero, for a vertex cut."""
    report: dict[str, JsonValue] = {}
    """What the method reports about its search."""


CheckMemory = Callable[[Csr], object]
"""Raises an error for a graph whose partition would take too much memory."""


def load_or_compute_partition(
    choice: DatasetChoice, A: Csr, folder: Path, check_memory: CheckMemory | None
) -> Partition:
    """Return the partition of a graph, computing and caching it first if no process has.

    If `check_memory` is None, a partition that is not cached is an error.
    """
    structure = _hash_structure(A)
    path = _get_path(choice, folder, structure)
    if not path.exists():
        if check_memory is None:
            raise UserError(
                f"dataset {choice.name}: its partition {choice.partition} into {choice.parts} parts has not been "
                f"computed, and ranks do not compute partitions. Compute it before the launch: {choice.build_command}"
            )
        _compute_partition(choice, A, path, structure, check_memory)
    return _read_partition(path, choice, structure, A)


def compute_partitions_in_parallel(
    choices: Sequence[DatasetChoice], A: Csr, folder: Path, resources: BuildResources, max_processes: int
) -> list[MakePartition]:
    """Compute and cache the partitions of one graph; return the functions that read them.

    At most `max_processes` processes compute at once. Methods that use all threads run one at a time, in this process.
    """
    structure = _hash_structure(A)
    paths = [_get_path(choice, folder, structure) for choice in choices]
    forked_jobs: list[Callable[[], None]] = []
    local_jobs: list[Callable[[], None]] = []
    for choice, path in zip(choices, paths, strict=True):
        compute = partial(_compute_partition, choice, A, path, structure, lambda _: None)
        if max_processes > 1 and choice.partition not in USE_ALL_THREADS and not path.exists():
            forked_jobs.append(partial(_run_in_fork, compute))
        else:
            local_jobs.append(compute)
    resources.run_parallel("partitioning", forked_jobs, max_processes)
    resources.run_parallel("partitioning", local_jobs, 1)
    return [
        partial(_read_partition, path, choice, structure, A)
        for choice, path in zip(choices, paths, strict=True)
    ]


def _get_path(choice: DatasetChoice, folder: Path, structure: str) -> Path:
    name = f"{choice.name}-{choice.partition}-{choice.parts}-s{choice.seed}-{structure[:10]}"
    return folder / FOLDER / "computed" / name


def _compute_partition(
    choice: DatasetChoice, A: Csr, path: Path, structure: str, check_memory: CheckMemory
) -> None:
    """Compute and cache a partition unless it is cached. On a file system without locks, the first process wins."""
    if path.exists():
        return
    with explain_os_errors(path, DATASETS), acquire_lock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            check_memory(A)
            method = cast(Method, choice.partition)
            parts, report = compute_parts_with_report(A, method, choice.parts, choice.seed)
            _write_partition(path, choice, structure, parts, report)


def _run_in_fork(job: Callable[[], None]) -> None:
    """Run a job in a forked process; raise its error here, or an error if the process was killed."""
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_run_and_exit, args=(job, sender, os.getpid()), daemon=True)
    process.start()
    process.join()
    if receiver.poll():
        raise receiver.recv()
    if process.exitcode:
        raise RunError(
            f"a process that computed a partition ended with {process.exitcode}. If it ran out of memory, compute "
            "fewer at a time (--workers)."
        )


def _run_and_exit(job: Callable[[], None], sender: Connection, parent: int) -> None:
    """Run a job, send its error, and exit at once: a normal exit would wait for threads that a fork does not have."""
    die_with_parent(parent)()
    torch.set_num_threads(1)
    try:
        job()
    except (UserError, RunError) as error:
        sender.send(error)
    os._exit(0)


def _write_partition(
    path: Path, choice: DatasetChoice, structure: str, parts: Tensor | VertexCut, report: dict[str, Any]
) -> None:
    vertices, edges = (parts.part, parts.edges) if isinstance(parts, VertexCut) else (parts, None)
    check_free_space(path, 4 * (len(vertices) + (0 if edges is None else len(edges))) + 4096)
    with atomic_folder(path, RECORD, DATASETS) as unfinished:
        record = PartitionRecord(
            **_describe_choice(choice, structure),
            engine=get_library_version(choice.partition),
            array=_write_int32(unfinished / ARRAY, vertices),
            edges=None if edges is None else _write_int32(unfinished / EDGES, edges),
            report=report,
        )
        text = json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
        write_synced(unfinished / RECORD, text.encode())


def _write_int32(path: Path, numbers: Tensor) -> FileRecord:
    with path.open("wb") as file:
        hashed = HashedFile(file)
        np.lib.format.write_array(hashed, numbers.numpy().astype(np.int32))
    return FileRecord(bytes=hashed.bytes, sha256=hashed.sha256.hexdigest())


def _describe_choice(choice: DatasetChoice, structure: str) -> dict[str, Any]:
    """Return the fields of the record that must match the choice and the graph."""
    return {
        "name": choice.name,
        "method": choice.partition,
        "parts": choice.parts,
        "seed": choice.seed,
        "structure": structure,
    }


def _read_partition(path: Path, choice: DatasetChoice, structure: str, A: Csr) -> Partition:
    record = _read_record(path, choice)
    for key, value in _describe_choice(choice, structure).items():
        if getattr(record, key) != value:
            _refuse(path / RECORD, f"says {key} = {getattr(record, key)!r} instead of {value!r}", choice)
    partition = order_by_part(_read_parts(path / ARRAY, record.array, choice, A.rows), choice.parts)
    if record.edges is None:
        return partition
    edges = _read_parts(path / EDGES, record.edges, choice, A.nnz)
    return replace(partition, edges=edges, copies=tuple(cast(list[int], record.report["copies"])))


def _read_parts(path: Path, record: FileRecord, choice: DatasetChoice, size: int) -> Tensor:
    """Return the parts of `size` vertices or nonzeros."""
    parts = _read_array(path, record, choice)
    if parts.shape != (size,) or parts.dtype != np.int32:
        _refuse(
            path, f"holds {parts.dtype} of shape {parts.shape}, expected int32 of shape ({size},)", choice
        )
    if parts.min() < 0 or parts.max() >= choice.parts:
        _refuse(path, f"has parts {parts.min()} to {parts.max()}, expected 0 to {choice.parts - 1}", choice)
    return torch.from_numpy(parts)


def _read_record(path: Path, choice: DatasetChoice) -> PartitionRecord:
    try:
        return validate(PartitionRecord, json.loads((path / RECORD).read_bytes()), RECORD)
    except (OSError, ValueError) as error:
        _refuse(path / RECORD, f"cannot be read: {error}", choice)


def _read_array(path: Path, record: FileRecord, choice: DatasetChoice) -> NDArray[Any]:
    try:
        content = path.read_bytes()
        if (len(content), hashlib.sha256(content).hexdigest()) != (record.bytes, record.sha256):
            _refuse(path, f"was altered: its size or checksum differs from {RECORD}", choice)
        return cast(NDArray[Any], np.load(path, allow_pickle=False))
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", choice)


def _refuse(path: Path, reason: str, choice: DatasetChoice) -> Never:
    raise UserError(
        f"{path} {reason}. Delete the folder {path.parent} and build again: {choice.build_command}"
    ) from None


def _hash_structure(A: Csr) -> str:
    """Hash the positions of the nonzeros and the version of the partition methods."""
    digest = hashlib.sha256(f"partition {VERSION}".encode())
    for tensor in (A.rowptr, A.col):
        digest.update(f"{tensor.dtype} {len(tensor)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
