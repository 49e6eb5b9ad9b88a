"""The manifest of a store: what is in the folder, how it was cut, where it came from, and every file's checksum.

It holds no time, no path of a machine and no host, so that equal inputs give equal bytes wherever they are
built. The file is written last: a folder without one is not a store.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from harness.errors import UserError
from harness.graph.model import LabelTask, StageCounts
from harness.graph.order import Permutation
from harness.spec.dataset import DatasetChoice
from harness.validation import Frozen, validated

SCHEMA = 5
FILE = "manifest.json"


class FileRecord(Frozen):
    """What a file must be."""

    bytes: int
    sha256: str


class BlockGrid(Frozen):
    """Into how many pieces vertices and feature columns are cut, each of the ceiling of their share."""

    vertices: int
    features: int


class Cut(Frozen):
    """What the partition of a store makes of its graph, part by part."""

    bounds: tuple[int, ...]
    """Where the parts begin, and the end."""
    nonzeros: tuple[int, ...]
    """In the rows of each part: its work."""
    needed: tuple[int, ...]
    """Rows of other parts that each part multiplies by: what it must receive."""


class Provenance(Frozen):
    """Where the data came from."""

    harness: str
    """Version of the harness."""
    versions: dict[str, int]
    """Versions of the generator, of the recipes and of what partitions."""
    card: dict[str, JsonValue]
    sources: dict[str, FileRecord]
    """The files that were read, by their path in the data folder."""


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
    """Of the permutation or the partition; the card holds the seed of the graph."""
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
        """What was asked for when the store was built."""
        return DatasetChoice(**{key: getattr(self, key) for key in DatasetChoice.model_fields})

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
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}. {_build(folder, None)}") from None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA:
        raise UserError(
            f"{path} has the schema version {version!r}, this harness reads {SCHEMA}. {_build(folder, fields)}"
        )
    try:
        return validated(Manifest, fields, str(path)), hashlib.sha256(content).hexdigest()
    except UserError as error:
        raise UserError(f"{error} {_build(folder, fields)}") from None


def _build(folder: Path, fields: Any) -> str:
    """The way out for a folder whose manifest may say little."""
    known: dict[str, Any] = {"name": folder.name.rpartition("-")[0] or folder.name}
    if isinstance(fields, dict):
        known |= {key: fields[key] for key in DatasetChoice.model_fields if key in fields}
    choice = DatasetChoice.model_construct(**known)  # as it stands, sound or not
    return f"Build it again: {choice.build_command}"
