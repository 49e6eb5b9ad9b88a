"""The dataset of a run and the order of its vertices: permuted, or partitioned for strategies that split rows.

This module does not access the files of a dataset, and does not import torch.
"""

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from harness.base.validation import VERTICES, Frozen, Seed, check_name

COMPUTED = (
    "random",
    "metis",
    "metis-volume",
    "metis-balanced",
    "g3-literal",
    "g3-guarded",
    "hypergraph",
    "libra",
)
FILE = "file:"
ACCEPTED = f"block, {', '.join(COMPUTED)}, or {FILE}NAME for the file partitions/NAME of the data folder"


def strip_width(name: str) -> str:
    """Return the name of a twin without its feature width, as NAME@1-16 for NAME@1-16w256."""
    return re.sub(r"(@.*\d)w\d+$", r"\1", name)


class DatasetChoice(Frozen):
    """A dataset in an order. Equal choices mean equal data, so keys without effect are refused."""

    name: str = Field(max_length=200)
    """A name of `harness list datasets`, or a twin as ogbn-products@1/16."""
    permutation: Literal["none", "single", "double"] = "none"
    """The random order of the vertices: one for rows and columns, or one for each."""
    seed: Seed = 0
    """The seed of the permutation, or of the partition."""
    partition: str = "block"
    """The method that assigns vertices to parts; `block` keeps their order and cuts equal blocks."""
    parts: int = Field(0, ge=0, le=VERTICES, validate_default=True)
    """The number of parts; 0 with `block`, which is cut by its strategy."""

    @field_validator("name")
    @classmethod
    def _normalise_name(cls, name: str) -> str:
        """Return the name as a file name; the name NAME@1/16 of a twin becomes NAME@1-16."""
        of, at, scale = name.partition("@")
        if at and not re.fullmatch(r"[0-9/w-]{1,100}", scale):
            raise ValueError("the scale of a twin is a share of its graph, as in NAME@1/16, or NAME@1/16w256")
        return f"{check_name(of)}{at}{scale.replace('/', '-')}"

    @field_validator("partition")
    @classmethod
    def _check_partition(cls, partition: str, known: ValidationInfo) -> str:
        if partition not in ("block", *COMPUTED) and not re.fullmatch(r"file:\w[\w.-]*", partition):
            raise ValueError(f"accepted are {ACCEPTED} (letters, digits, '.', '_' and '-')")
        permutation = known.data.get("permutation", "none")
        if partition != "block" and permutation != "none":
            raise ValueError(
                f"a partition is itself an order of the vertices, which permutation = {permutation!r} would destroy; "
                "set permutation to none, or partition to block"
            )
        return partition

    @field_validator("parts")
    @classmethod
    def _check_parts(cls, parts: int, known: ValidationInfo) -> int:
        partition = known.data.get("partition")
        if partition == "block" and parts:
            raise ValueError(
                f"a strategy cuts blocks itself, so parts is 0 with partition = 'block'; for parts in the store, "
                f"partition is one of {', '.join(COMPUTED)} or {FILE}NAME"
            )
        if partition not in (None, "block") and not parts:
            raise ValueError(
                f"partition = {partition!r} needs a number of parts: the number of ranks that split the rows, 1 or more"
            )
        return parts

    @property
    def partitioned(self) -> bool:
        return self.partition != "block"

    @property
    def is_computed_from_edges(self) -> bool:
        """True if the partition is computed from the edges of the graph."""
        return self.partition in COMPUTED and self.partition != "random"

    @property
    def file(self) -> str | None:
        """The name of the user's partition file; None for other partitions."""
        return self.partition.removeprefix(FILE) if self.partition.startswith(FILE) else None

    @property
    def effective_seed(self) -> int:
        """The seed, or 0 if the order does not depend on the seed."""
        return self.seed if self.permutation != "none" or self.partition in COMPUTED else 0

    @property
    def build_command(self) -> str:
        """The command that builds or rebuilds the store, without options that have their defaults."""
        words = ["harness data build", self.name]
        if self.permutation != "none":
            words.append(f"--permutation {self.permutation}")
        if self.partitioned:
            words.append(f"--partition {self.partition} --parts {self.parts}")
        if self.seed:
            words.append(f"--seed {self.seed}")
        return " ".join(words)
