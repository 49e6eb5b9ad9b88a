"""Machine cards: what a place to run looks like, from machines/NAME.yaml."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationInfo, field_validator

from harness.validation import Frozen, unknown, validated


class MeasuredLink(Frozen):
    """GB a second of a collective over axes of this size or more, their neighbours so many ranks apart or more."""

    before: int = Field(ge=1)
    size: int = Field(ge=2)
    gbs: float = Field(gt=0)


class Links(Frozen):
    """What predictions take for the network. A GB is 2^30 bytes; ranks fill one node after the other."""

    devices_per_node: int = Field(ge=1)
    intra_gbs: float = Field(gt=0)
    """GB a second between devices of a node."""
    node_gbs: float = Field(gt=0)
    """GB a second into or out of a node, all its devices together."""
    measured: tuple[MeasuredLink, ...] = ()
    """Of the rows that are not above an axis the last one holds."""


class SpmmModel(Frozen):
    """Coefficients of Plexus' equation 4.4, in milliseconds (`strategies.plexus.model`)."""

    flops: float
    forward: float
    backward: float
    intercept: float = 0.0


class Machine(Frozen):
    """One kind of machine. What changes the speed of a run there belongs here, and so into the run id."""

    name: str
    description: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    engine: Literal["gloo", "nccl"] = "gloo"
    composed_from: int | None = Field(None, ge=0)
    """Bytes from which broadcasts, gathers, scatters and all-to-alls are composed out of rounds instead of left to
    gloo: faster where links are the bottleneck (benchmarks/results/links.md). Without it they never are."""
    threads_per_rank: int = Field(1, ge=1)
    allocator: dict[str, str] = {}
    """Environment variables of the memory allocator, set for every rank and recorded."""

    @field_validator("composed_from")
    @classmethod
    def _only_gloo_is_slow(cls, size: int | None, known: ValidationInfo) -> int | None:
        if size is not None and known.data.get("engine") == "nccl":
            raise ValueError("it is for the engine gloo; nccl has rings of its own")
        return size


class MachineCard(Machine):
    """All that a card may say: what runs are made for, and what predictions go by, which no run id depends on."""

    links: Links | None = None
    spmm: SpmmModel | None = None


def load_machine(root: Path, name: str) -> Machine:
    """What runs on a machine are made for."""
    card = load_machine_card(root, name)
    return Machine(**{key: getattr(card, key) for key in Machine.model_fields})


def load_machine_card(root: Path, name: str) -> MachineCard:
    """The card machines/NAME.yaml under the project root."""
    path = root / "machines" / f"{name}.yaml"
    if not path.is_file():
        raise unknown("machine", name, list_machines(root), "Cards live in machines/.")
    card = yaml.safe_load(path.read_text())
    return validated(MachineCard, {"name": name, **(card or {})}, f"machines/{name}.yaml")


def list_machines(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "machines").glob("*.yaml"))
