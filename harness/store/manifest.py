"""The manifest of a store: its content, its cut, its origin, and the checksum of every file.

The manifest holds no time, no path of a machine and no host, so that equal inputs give equal bytes on every machine.
The manifest is written last: a folder without a manifest is not a store.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from harness.errors import UserError
from harness.graph.model import LabelTask, StageCounts, Weighting
from harness.graph.order import Permutation
from harness.spec.dataset import DatasetChoice
from harness.validation import Frozen, validate

SCHEMA = 5
FILE = "manifest.json"


class FileRecord(Frozen):
    """The size and the checksum that a file must have."""

    bytes: int
    sha256: str


class BlockGrid(Frozen):
    """The pieces into which vertices and feature columns are cut; a piece is the ceiling of its share."""

    vertices: int
    features: int


class Cut(Frozen):
    """The work and the communication of each part of a partitioned store."""

    bounds: tuple[int, ...]
    """The first vertex of each part, and the end."""
    nonzeros: tuple[int, ...]
    """The nonzeros in the rows of each part: its work."""
    needed: tuple[int, ...]
    """The rows of other parts that each part multiplies by and must receive."""
    entries: tuple[int, ...] | None = None
    """By a vertex cut: the nonzeros of each part, its work there."""
    copies: tuple[int, ...] | None = None
    """By a vertex cut: the vertices that each part has a copy of."""


class Provenance(Frozen):
    """The origin of the data."""

    harness: str
    """Version of the harness."""
    versions: dict[str, int]
    """Versions of the generator, of the recipes and of the partition methods."""
    card: dict[str, JsonValue]
    sources: dict[str, FileRecord]
    """The files that the build read, by path in the data folder."""


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
    """The seed of the permutation or the partition; the card holds the seed of the graph."""
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
        """The choice of the build."""
        return DatasetChoice(**{key: getattr(self, key) for key in DatasetChoice.model_fields})

    @property
    def weights(self) -> Weighting | None:
        """The values of a weighted A, as the card says; None if edges carry no weights."""
        return self.provenance.card.get("weights")  # type: ignore[return-value]

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a store and the sha256 of its bytes."""
    path = folder / FILE
    try:
        content = path.read_bytes()
        fields = json.loads(content)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a store: it has no {FILE}. {_build(folder, None)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}. {_build(folder, None)}") from None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA:
        raise UserError(
            f"{path} has the schema version {version!r}, this harness reads {SCHEMA}. {_build(folder, fields)}"
        )
    try:
        return validate(Manifest, fields, str(path)), hashlib.sha256(content).hexdigest()
    except UserError as error:
        raise UserError(f"{error} {_build(folder, fields)}") from None


def _build(folder: Path, fields: Any) -> str:
    """The way out for a folder whose manifest may be incomplete."""
    known: dict[str, Any] = {"name": folder.name.rpartition("-")[0] or folder.name}
    if isinstance(fields, dict):
        known |= {key: fields[key] for key in DatasetChoice.model_fields if key in fields}
    choice = DatasetChoice.model_construct(**known)  # as it stands, sound or not
    return f"Build it again: {choice.build_command}"
