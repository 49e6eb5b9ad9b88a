"""Machine cards: what a place to run looks like, from machines/NAME.yaml."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationInfo, field_validator

from harness.validation import Frozen, unknown, validated


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


def load_machine(root: Path, name: str) -> Machine:
    """The card machines/NAME.yaml under the project root."""
    path = root / "machines" / f"{name}.yaml"
    if not path.is_file():
        raise unknown("machine", name, list_machines(root), "Cards live in machines/.")
    card = yaml.safe_load(path.read_text())
    return validated(Machine, {"name": name, **(card or {})}, f"machines/{name}.yaml")


def list_machines(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "machines").glob("*.yaml"))
