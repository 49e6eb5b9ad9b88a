"""Machine cards: descriptions of the machines that runs are made for, from config/machines/NAME.yaml."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.documents import read_yaml
from harness.validation import Frozen, format_value, unknown_name_error, validate


class Constant(Frozen):
    """A number of a machine, the interval of its true value, and where it was taken from."""

    value: float = Field(gt=0, allow_inf_nan=False)
    within: float = Field(ge=1, allow_inf_nan=False)
    """The true value lies between value / within and value * within."""
    source: str = Field(min_length=1)
    """A page, a command, or `assumed`."""


class SpmmTerms(Frozen):
    """Nanoseconds of the product of a sparse matrix (m x k) with a dense one (k x n): the sum of five or six terms.

    No term is negative: a sum with a negative one predicts negative times wherever that term is large. The sixth term
    prices the rows of the dense matrix that are read from memory because the cache cannot hold them all. It needs the
    size of the cache, and is left out on cards without one.
    """

    entry_column: float = Field(ge=0, allow_inf_nan=False)
    """For each nonzero and column of the dense matrix: rows that are read and added up."""
    entry: float = Field(ge=0, allow_inf_nan=False)
    """For each nonzero: its column and its value."""
    row_column: float = Field(ge=0, allow_inf_nan=False)
    """For each number of the result."""
    row: float = Field(ge=0, allow_inf_nan=False)
    call: float = Field(ge=0, allow_inf_nan=False)
    missed_column: float = Field(0.0, ge=0, allow_inf_nan=False)
    """For each nonzero and column of the dense matrix, times the share of the dense matrix that exceeds the cache."""
    cache_mb: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The size of that cache in 2^20 bytes."""
    within: float = Field(ge=1, allow_inf_nan=False)
    """The true time lies between the sum divided and the sum multiplied by this."""
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _missed_column_needs_a_cache(self) -> Self:
        if self.missed_column and self.cache_mb is None:
            raise ValueError("missed_column needs cache_mb, the size of the cache in 2^20 bytes")
        return self


class Rates(Frozen):
    """The speed of the device of one rank. A GB is 2^30 bytes."""

    tflops: Constant
    """The peak of dense products in float32, in 10^12 operations a second."""
    tflops_half: Constant | None = None
    """The same in bfloat16 and float16; None takes `tflops` for these."""
    memory_gbs: Constant
    """The peak bandwidth of the device's memory, in GB a second."""
    efficiency: Constant
    """The share of both peaks that kernels reach."""
    launch_us: Constant
    """The time of a kernel that computes next to nothing."""
    sample_ns: Constant
    """The time of an entry of A that is sampled, the numbering of its vertices included. Samplers draw where A is: on
    the host, or on the GPU. The source says where it was measured."""
    spmm: SpmmTerms
    cores_per_node: int | None = Field(None, ge=1)
    """The cores that the ranks of a node share; None where every rank has a device of its own."""


class MeasuredLink(Frozen):
    """The bandwidth of a collective over axes of at least `size` ranks, neighbours at least `before` ranks apart."""

    before: int = Field(ge=1)
    size: int = Field(ge=2)
    gbs: float = Field(gt=0, allow_inf_nan=False)


class Links(Frozen):
    """The network of the predictions. A GB is 2^30 bytes; ranks fill one node after the other."""

    devices_per_node: int = Field(ge=1)
    intra_gbs: Constant
    """GB a second between devices of a node."""
    node_gbs: Constant
    """GB a second into or out of a node, all its devices together."""
    intra_latency_us: Constant
    """The time of a message without words inside a node."""
    latency_us: Constant
    """The time of a message without words between nodes."""
    all_to_all_share: Constant
    """The share of the bandwidth that an all-to-all reaches: its messages collide."""
    host_gbs: Constant | None = None
    """GB a second between a device and its host, one way, while all devices of the node copy; None where ranks compute
    on the host itself."""
    host_latency_us: Constant | None = None
    """The time of a copy without bytes between a device and its host."""
    call_us: Constant | None = None
    """The least time of a call between devices, however few its bytes; None takes `launch_us`."""
    cpu_gbs: Constant | None = None
    """GB a second that a core receives and sends at once, where messages take time of the cores that compute."""
    measured: tuple[MeasuredLink, ...] = ()
    """The measured bandwidths; an axis takes the last row that is not above the axis."""


class PlexusModel(Frozen):
    """The coefficients of Plexus' own model of products, equation 4.4, in milliseconds (benchmarks/plexus_formulas.py).

    Predictions take the rates of the device; this model is for the paper's figure 5.
    """

    flops: float = Field(ge=0)
    forward: float = Field(ge=0)
    backward: float = Field(ge=0)
    intercept: float = Field(0.0, ge=0)


class Builds(Frozen):
    """The jobs that build graphs. A build needs one process and no GPU."""

    partition: str | None = None
    """These three override those of the runs."""
    qos: str | None = None
    constraint: str | None = None
    sbatch: str = ""
    """More words for sbatch; those of the runs do not count."""
    cpus: int = Field(default=1, ge=1)
    memory_mb: int = Field(default=0, ge=0)
    """The memory that a build asks for; 0 asks for none."""
    entries_per_second: Constant = Constant(
        value=2e7,
        within=8,
        source="ogbn-papers100M whole on two cores (benchmarks/results/building.md); other machines assumed",
    )
    """The speed of the builder, by which the time of a build is asked."""


class Container(Frozen):
    """The image in which the ranks of a step run. `harness run` itself stays outside, where srun is."""

    runtime: Literal["apptainer", "shifter", "podman-hpc"]
    image: str = Field(min_length=1)
    """A file or a name, as the runtime knows images; it holds Python and the harness."""
    options: str = ""
    """More words for the runtime, as --nv, --rocm or --gpu."""


class Slurm(Frozen):
    """The nodes of a machine, as Slurm allocates nodes.

    No run id depends on these keys: to pack or bind ranks in another way, write another card.
    """

    ranks_per_node: int = Field(ge=1)
    """Ranks fill one node after the other; the last node may have fewer."""
    cpus_per_rank: int = Field(1, ge=1)
    """The processors of a rank as Slurm counts processors, hardware threads included."""
    gpus_per_node: int = Field(0, ge=0)
    """The GPUs that a job takes of every node, even for fewer ranks: other jobs would disturb a measurement."""
    memory_mb: int = Field(0, ge=0)
    """The memory that a job asks for on every node; 0 asks for none, as on machines that allocate whole nodes."""
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str = ""
    """More words for sbatch, as --exclusive, except those that the keys above set."""
    scheduler: Literal["slurm", "flux", "pbs", "lsf"] = "slurm"
    """The program that starts ranks in an allocation: srun, `flux run`, mpiexec of PALS, or jsrun."""
    srun: str = ""
    """More words for that program, as those that bind ranks to cores and devices."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces of a node. Ranks are spread over these in order, each to the interface beside it."""
    environment: dict[str, str] = {}
    """Environment variables of every rank."""
    fabric: dict[str, str] = {}
    """Environment variables of ranks on several nodes: a node alone has no network to set up."""
    networks: tuple[str, ...] = ()
    """The names by which NCCL's log may call the fabric; `harness doctor --links` refuses any other."""
    modules: tuple[str, ...] = ()
    """Environment modules to load before the harness is started; `harness doctor` names those that are not loaded."""
    python: str = ""
    """The words that start Python in a rank, if not this interpreter, or `python` in a container."""
    container: Container | None = None
    """The image of the ranks; None starts them as programs of the node."""
    local: str = "/tmp"
    """A folder on each node's own disk or memory, for caches and staged archives."""
    stage: tuple[str, ...] = ()
    """Archives (tar) that are unpacked into `local` on every node before the first ranks of a job."""
    minutes: float = Field(30, gt=0)
    """The time limit of a run. A prediction, or an earlier run like it, may lengthen it."""
    shared_nodes: int = Field(1, ge=0)
    """Runs of at most so many nodes share jobs of several launches; on more nodes each launch has a job of its own."""
    job_minutes: float = Field(240, gt=0)
    """The time limit of a shared job."""
    builds: Builds | None = None
    """The jobs that build graphs; None gives them a node like those of runs."""


ALLOCATOR = frozenset(
    {
        *(f"MALLOC_{name}" for name in ("ARENA_MAX", "ARENA_TEST", "CHECK_", "MMAP_MAX_", "MMAP_THRESHOLD_")),
        *(f"MALLOC_{name}" for name in ("PERTURB_", "TOP_PAD_", "TRIM_THRESHOLD_", "CONF")),
        *(f"TCMALLOC_{name}" for name in ("AGGRESSIVE_DECOMMIT", "HEAP_LIMIT_MB", "RELEASE_RATE")),
        "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES",
        *(f"MIMALLOC_{name}" for name in ("ALLOW_LARGE_OS_PAGES", "ARENA_EAGER_COMMIT", "PURGE_DELAY")),
        *(f"PYTORCH_{name}" for name in ("ALLOC_CONF", "CUDA_ALLOC_CONF", "HIP_ALLOC_CONF")),
        *("PYTORCH_NO_CUDA_MEMORY_CACHING", "THP_MEM_ALLOC_ENABLE"),
    }
)
"""The variables of the allocators of glibc, jemalloc, tcmalloc, mimalloc and torch. A spec may come from others, and
another variable could make a program run code."""


class Machine(Frozen):
    """One kind of machine: the keys that change the speed of a run, and are part of its run id."""

    name: str = Field(max_length=100)
    description: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    engine: Literal["gloo", "nccl"] = "gloo"
    composed_from: int | None = Field(None, ge=0)
    """Bytes from which broadcasts, gathers, scatters and all-to-alls are composed out of rounds instead of left to
    gloo: faster where links are the bottleneck (benchmarks/results/links.md). Without it they never are."""
    threads_per_rank: int = Field(1, ge=1)
    allocator: dict[str, str] = {}
    """Environment variables of the memory allocator, set for every rank and recorded."""

    @field_validator("allocator")
    @classmethod
    def _are_settings_of_an_allocator(cls, settings: dict[str, str]) -> dict[str, str]:
        for name, value in settings.items():
            if name not in ALLOCATOR:
                accepted = ", ".join(sorted(ALLOCATOR))
                raise ValueError(
                    f"{format_value(name)} is not a variable of an allocator; accepted are {accepted}"
                )
            if not re.fullmatch(r"[\w.,:;+-]{0,200}", value):
                raise ValueError(
                    f"{name} = {format_value(value)}: a setting has letters, digits and .,:;+- only"
                )
        return settings

    @field_validator("composed_from")
    @classmethod
    def _only_gloo_is_slow(cls, size: int | None, known: ValidationInfo) -> int | None:
        if size is not None and known.data.get("engine") == "nccl":
            raise ValueError("it is for the engine gloo; nccl has rings of its own")
        return size


class MachineCard(Machine):
    """All keys of a card: those of the machine, and those of predictions and of Slurm, which no run id depends on."""

    memory_gb: float | None = Field(None, gt=0)
    """The memory of a rank, which `largest` fills. A GB is 2^30 bytes."""
    rates: Rates | None = None
    """The speed of a rank's device; None on a machine for which nothing is predicted."""
    links: Links | None = None
    plexus_model: PlexusModel | None = None
    hardware: dict[str, float] = {}
    """More facts of the machine, on which nothing here depends: the claims of papers are held against them."""
    slurm: Slurm | None = None
    """The nodes of a Slurm machine; None for a machine of one node."""
    start_seconds: float = Field(120, gt=0, allow_inf_nan=False)
    """Seconds that the first rank of this machine may take to start: more if torch is on a slow file system."""


MACHINES = Path("config") / "machines"


def load_machine(root: Path, name: str) -> Machine:
    """The part of a machine card that belongs to a spec."""
    card = load_machine_card(root, name)
    return Machine(**{key: getattr(card, key) for key in Machine.model_fields})


def load_machine_card(root: Path, name: str) -> MachineCard:
    """The card config/machines/NAME.yaml under the project root."""
    if name not in list_machines(root):
        raise unknown_name_error("machine", name, list_machines(root), f"Cards live in {MACHINES}/.")
    where = str(MACHINES / f"{name}.yaml")
    return validate(MachineCard, {"name": name, **read_yaml(root / where, where)}, where)


def load_start_seconds(root: Path, name: str) -> float:
    """The limit of the card; the default for a machine without a card in this project."""
    if name in list_machines(root):
        return load_machine_card(root, name).start_seconds
    default: float = MachineCard.model_fields["start_seconds"].default
    return default


def list_machines(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / MACHINES).glob("*.yaml"))
