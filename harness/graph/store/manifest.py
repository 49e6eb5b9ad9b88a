"""The manifest of a store: what it holds, its partition, where its data comes from, and the checksum of every file.

A manifest holds no time, no path and no host name, so equal inputs give equal bytes on every machine. It is written
last: a folder without a manifest is not a store.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

from pydantic import JsonValue

from harness.base.errors import UserError, environment_error
from harness.base.files import hash_file
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.base.validation import Frozen, validate
from harness.graph.model import LabelTask, Permutation, StageCounts, Weighting
from harness.graph.partitions.file import list_partition_files
from harness.spec.dataset import DatasetChoice
from harness.spec.spec import hash_data

SCHEMA = 5
MANIFEST_FILE = "manifest.json"


class FileRecord(Frozen):
    """The size and the checksum of a file."""

    bytes: int
    sha256: str


class BlockGrid(Frozen):
    """The number of blocks along the vertices and along the feature columns; blocks are cut at the ceiling."""

    vertices: int
    features: int


class Cut(Frozen):
    """The work and the communication of each part of a partition."""

    bounds: tuple[int, ...]
    """The first vertex of each part, and the end."""
    nonzeros: tuple[int, ...]
    """The nonzeros in the rows of each part, a measure of its work."""
    needed: tuple[int, ...]
    """The remote rows that each part needs to receive."""
    entries: tuple[int, ...] | None = None
    """For a vertex cut, the nonzeros assigned to each part."""
    copies: tuple[int, ...] | None = None
    """For a vertex cut, the number of vertices copied to each part."""


class Provenance(Frozen):
    """Where the data comes from."""

    harness: str
    """The version of the harness."""
    versions: dict[str, int]
    """The versions of the generator, of the recipes and of the partition methods."""
    card: dict[str, JsonValue]
    sources: dict[str, FileRecord]
    """The files that the build read, by their path in the data folder."""


class Manifest(Frozen):
    """The content of manifest.json."""

    schema_version: int
    name: str
    n: int
    features: int
    task: LabelTask
    classes: int
    directed: bool
    counts: StageCounts
    permutation: Permutation
    seed: int
    """The seed of the permutation or of the partition. The card holds the seed of the graph."""
    partition: str
    parts: int
    cut: Cut | None
    """None without a partition."""
    orders: tuple[int, ...]
    """The orders whose adjacency is stored; order 1 may be the transpose of order 0."""
    grid: BlockGrid
    dtypes: dict[str, str]
    provenance: Provenance
    files: dict[str, FileRecord]

    @property
    def choice(self) -> DatasetChoice:
        """The dataset choice that the store was built for."""
        return DatasetChoice(**{key: getattr(self, key) for key in DatasetChoice.model_fields})

    @property
    def weights(self) -> Weighting | None:
        """How A uses edge weights; None for edges without weights."""
        return self.provenance.card.get("weights")  # type: ignore[return-value]

    @property
    def graph_hash(self) -> str:
        """The hash of the graph, which is the same in every order of its vertices (`hash_graph`)."""
        origin, partition_files = self.provenance, list_partition_files(self.choice)
        files = {name: record for name, record in origin.sources.items() if name not in partition_files}
        return hash_graph(origin.card, origin.versions, files)

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def hash_graph(
    card: Mapping[str, JsonValue], versions: Mapping[str, int], sources: Mapping[str, FileRecord]
) -> str:
    """Return the hash of what defines a graph: its card, its source files, and the versions of the code that makes it.

    The order of the vertices and the version of partition methods are not part of it.
    """
    return hash_data(
        {
            "card": card,
            "sources": {name: record.model_dump() for name, record in sources.items()},
            "versions": {name: version for name, version in versions.items() if name != "partition"},
        }
    )


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return the manifest of a store, and the sha256 of its bytes."""
    path = folder / MANIFEST_FILE
    try:
        content = path.read_bytes()
        fields = json.loads(content)
    except FileNotFoundError:
        raise UserError(
            f"{folder} is not a store: it has no {MANIFEST_FILE}. {_suggest_build(folder, None)}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}. {_suggest_build(folder, None)}") from None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA:
        raise UserError(
            f"{path} has schema version {version!r}, but this harness reads {SCHEMA}. {_suggest_build(folder, fields)}"
        )
    try:
        return validate(Manifest, fields, str(path)), hashlib.sha256(content).hexdigest()
    except UserError as error:
        raise UserError(f"{error} {_suggest_build(folder, fields)}") from None


class StoreFiles:
    """The files of a store, which are compared with its manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest, self.manifest_hash = read_manifest(folder)

    def verify(self, on_step: OnStep = ignore_step) -> None:
        """Compare every file with the manifest; raise an error for the first that differs."""
        for name in report_steps(self.manifest.files, lambda file: f"checking {file}", on_step):
            self.check(name)

    def check(self, name: str, *, checksum: bool = True) -> None:
        """Raise an error if a file differs from the manifest. Without `checksum`, only its size is compared."""
        if name not in self.manifest.files:
            self.refuse(name, "is not in the manifest")
        expected = self.manifest.files[name]
        try:
            size = (self.folder / name).stat().st_size
            if size != expected.bytes:
                self.refuse(name, f"has {size:,} bytes, the manifest says {expected.bytes:,}")
            if checksum and hash_file(self.folder / name) != expected.sha256:
                self.refuse(name, "was altered: its checksum differs from the manifest")
        except OSError as error:
            self.refuse_unreadable(name, error)

    def refuse_unreadable(self, name: str, error: OSError) -> Never:
        """Raise an error for a file that cannot be opened, or for the environment, as with too many open files."""
        if refused := environment_error(error):
            raise refused from None
        self.refuse(name, f"cannot be opened: {error.strerror}")

    def refuse(self, name: str, reason: str) -> Never:
        """Raise an error for a file."""
        again = self.manifest.choice.build_command
        raise UserError(f"{self.folder / name} {reason}. Build the store again: {again}")


def _suggest_build(folder: Path, fields: Any) -> str:
    """Return advice to build the store again. The fields of the manifest may be incomplete."""
    known: dict[str, Any] = {"name": folder.name.rpartition("-")[0] or folder.name}
    if isinstance(fields, dict):
        known |= {key: fields[key] for key in DatasetChoice.model_fields if key in fields}
    choice = DatasetChoice.model_construct(**known)  # not validated
    return f"Build it again: {choice.build_command}"
