"""Machine cards: what a place to run looks like, from config/machines/NAME.yaml."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from harness.documents import read_yaml
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
    latency_us: float | None = Field(None, gt=0)
    """Of the smallest all-reduce of all ranks, as `harness doctor --links` measures it. Predictions leave it out."""
    measured: tuple[MeasuredLink, ...] = ()
    """Of the rows that are not above an axis the last one holds."""


class SpmmModel(Frozen):
    """Coefficients of Plexus' equation 4.4, in milliseconds (`strategies.plexus.formulas`).

    None is negative: the terms grow without bound, and no product takes less than no time.
    """

    flops: float = Field(ge=0)
    forward: float = Field(ge=0)
    backward: float = Field(ge=0)
    intercept: float = Field(0.0, ge=0)


class Slurm(Frozen):
    """How Slurm gives out the nodes of a machine.

    No run id depends on it: who packs ranks otherwise, or binds them otherwise, writes another card.
    """

    ranks_per_node: int = Field(ge=1)
    """Ranks fill one node after the other; the last node may have fewer."""
    cpus_per_rank: int = Field(1, ge=1)
    """As Slurm counts them, hardware threads included."""
    gpus_per_node: int = Field(0, ge=0)
    """What a job takes of every node, also where fewer ranks run: neighbours would disturb a measurement."""
    memory_mb: int = Field(0, ge=0)
    """What a job asks for of every node; 0 asks for nothing, as where nodes are given whole."""
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str = ""
    """More words for sbatch, as --exclusive. Not those that the keys above stand for."""
    srun: str = ""
    """More words for srun: how ranks are bound to cores and devices."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces of a node. Ranks are spread over them in order: each speaks through the one beside it."""
    environment: dict[str, str] = {}
    """Environment variables of every rank."""
    minutes: float = Field(30, gt=0)
    """What a run may take whose like was never recorded."""
    shared_nodes: int = Field(1, ge=0)
    """Runs of at most so many nodes share jobs; larger ones have one each."""
    job_minutes: float = Field(240, gt=0)
    """What a shared job may take."""


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

    memory_gb: float | None = Field(None, gt=0)
    """Of a rank, for whatever is asked to be as large as fits. A GB is 2^30 bytes."""
    links: Links | None = None
    spmm: SpmmModel | None = None
    slurm: Slurm | None = None
    """Without it, a run has one node, whatever its ranks."""
    start_seconds: float = Field(120, gt=0, allow_inf_nan=False)
    """Seconds that the first rank of this machine may take to start: more where torch lies on a slow file system."""


MACHINES = Path("config") / "machines"


def load_machine(root: Path, name: str) -> Machine:
    """The part of a machine card that belongs to a spec."""
    card = load_machine_card(root, name)
    return Machine(**{key: getattr(card, key) for key in Machine.model_fields})


def load_machine_card(root: Path, name: str) -> MachineCard:
    """The card config/machines/NAME.yaml under the project root."""
    if name not in list_machines(root):
        raise unknown("machine", name, list_machines(root), f"Cards live in {MACHINES}/.")
    where = str(MACHINES / f"{name}.yaml")
    return validated(MachineCard, {"name": name, **read_yaml(root / where, where)}, where)


def start_seconds(root: Path, name: str) -> float:
    """What the card says; the default for the machine of a spec that has no card in this project."""
    if name in list_machines(root):
        return load_machine_card(root, name).start_seconds
    default: float = MachineCard.model_fields["start_seconds"].default
    return default


def list_machines(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / MACHINES).glob("*.yaml"))
