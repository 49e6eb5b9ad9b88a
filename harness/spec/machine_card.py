"""Machine cards: descriptions of machines, in config/machines/NAME.yaml."""

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.base.documents import read_yaml
from harness.base.validation import Frozen, format_value, unknown_name_error, validate


class Constant(Frozen):
    """A constant of a machine, with the interval of its true value and its source."""

    value: float = Field(gt=0, allow_inf_nan=False)
    within: float = Field(ge=1, allow_inf_nan=False)
    """The true value lies between value / within and value * within."""
    source: str = Field(min_length=1)
    """A page, a command, or `assumed`."""


class SpmmTerms(Frozen):
    """The time of the product of a sparse matrix (m x k) and a dense matrix (k x n), as a sum of terms in nanoseconds.

    A kernel may multiply only `pass_columns` columns of the dense matrix at a time. It then reads the sparse matrix in
    each pass, and the terms `entry`, `row` and `missed_entry` count once per pass. Without `pass_columns`, all columns
    are multiplied in one pass.

    The terms `missed_column` and `missed_entry` price the rows of the dense matrix that do not fit into the cache and
    are read from memory. They need the size of the cache, and are 0 on cards without it. Terms are not negative: a
    negative term would give negative times where it dominates.
    """

    entry_column: float = Field(ge=0, allow_inf_nan=False)
    """Per nonzero and column of the dense matrix: reading a row and adding it."""
    entry: float = Field(ge=0, allow_inf_nan=False)
    """Per nonzero and pass: reading its column and its value."""
    row_column: float = Field(ge=0, allow_inf_nan=False)
    """Per element of the result, also in rows without nonzeros."""
    row: float = Field(ge=0, allow_inf_nan=False)
    """Per row of the result and pass, also without nonzeros."""
    call: float = Field(ge=0, allow_inf_nan=False)
    """Per product."""
    missed_column: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Per nonzero and column of the dense matrix, times the fraction of its rows that miss the cache: their bytes."""
    missed_entry: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Per nonzero and pass, times the same fraction: a row takes at least one access to memory, however short it is."""
    cache_mb: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The size of the cache that holds rows of the dense matrix, in 2^20 bytes."""
    pass_columns: int | None = Field(None, ge=1)
    """The columns of the dense matrix that are multiplied in one pass; None means all."""
    within: float = Field(ge=1, allow_inf_nan=False)
    """The true time lies between sum / within and sum * within."""
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _check_cache_size(self) -> Self:
        for name in ("missed_column", "missed_entry"):
            if getattr(self, name) and self.cache_mb is None:
                raise ValueError(f"{name} needs cache_mb, the size of the cache in 2^20 bytes")
        return self


class Rates(Frozen):
    """The speed of the device of a rank. A GB is 2^30 bytes."""

    tflops: Constant
    """The peak rate of dense products in float32, in 10^12 operations per second."""
    tflops_half: Constant | None = None
    """The same in bfloat16 and float16; None means `tflops`."""
    memory_gbs: Constant
    """The peak bandwidth of the device's memory, in GB per second."""
    efficiency: Constant
    """The fraction of both peaks that kernels reach."""
    launch_us: Constant
    """The time of a kernel with almost no work, in microseconds."""
    issue_us: Constant | None = None
    """The time in which the host issues a kernel or a call through its framework, in microseconds, while the device
    executes earlier ones. None if ranks compute on the host, or if `launch_us` was measured with it."""
    event_us: Constant | None = None
    """The time of a rank's own code around the kernels and calls of an event, in microseconds. An event is what a rank
    does under one key of its ledger. None if the host of a GPU does it while the GPU executes earlier kernels."""
    sample_ns: Constant
    """The time to sample an entry of A and to number its vertices, in nanoseconds. Sampling runs on the device that
    holds A, the host or the GPU; the source says on which it was measured."""
    spmm: SpmmTerms
    cores_per_node: int | None = Field(None, ge=1)
    """The number of cores that the ranks of a node share; None if each rank has its own GPU."""


class MeasuredLink(Frozen):
    """The bandwidth of collectives on axes of at least `size` ranks whose members are at least `before` ranks apart."""

    before: int = Field(ge=1)
    size: int = Field(ge=2)
    gbs: float = Field(gt=0, allow_inf_nan=False)
    """GB per second received by a member of a ring."""


class Noise(Frozen):
    """How much the time of a message between nodes varies from rank to rank and from run to run."""

    deviation: float = Field(ge=0, allow_inf_nan=False)
    """The standard deviation, as a fraction of the time."""
    source: str = Field(min_length=1)


class Links(Frozen):
    """The links between ranks, for predictions. A GB is 2^30 bytes. Ranks fill one node after the other."""

    devices_per_node: int = Field(ge=1)
    intra_gbs: Constant
    """GB per second into a device from all other devices of its node."""
    peer_gbs: Constant | None = None
    """GB per second from one device of a node to another over their direct link. A call of p devices uses p - 1 links
    of each, up to `intra_gbs`. None if any two devices reach `intra_gbs`, as over a switch."""
    node_gbs: Constant
    """GB per second into or out of a node, for all its devices together."""
    intra_latency_us: Constant
    """The time of an empty message within a node."""
    latency_us: Constant
    """The time of an empty message between nodes."""
    all_to_all_share: Constant
    """The fraction of the bandwidth between nodes that an all-to-all reaches, because its messages collide."""
    host_gbs: Constant | None = None
    """GB per second in one direction between a device and its host, while all devices of the node copy. None if ranks
    compute on the host."""
    host_latency_us: Constant | None = None
    """The time of an empty copy between a device and its host."""
    call_us: Constant | None = None
    """The minimum time of a call between devices, whatever its size; None means `launch_us`."""
    exchange_us: Constant | None = None
    """The minimum time of an all-to-all between devices; None means `call_us`."""
    noise: Noise | None = None
    """The noise of messages between nodes, which widens the intervals of predictions; None means no noise."""
    cpu_gbs: Constant | None = None
    """GB per second that a core sends and receives at the same time, if messages use the cores that compute."""
    measured: tuple[MeasuredLink, ...] = ()
    """The measured bandwidths. An axis takes the last row whose `before` and `size` do not exceed its own."""


class CheckedRuns(Frozen):
    """The runs whose epochs were both measured and predicted with a card."""

    runs: int = Field(ge=1)
    """The number of runs."""
    inside: int = Field(ge=0)
    """The number of runs whose epoch was within the interval of its prediction."""
    median_error: float = Field(ge=0, allow_inf_nan=False)
    """The median relative error of the predicted epochs."""
    source: str = Field(min_length=1)
    """The page or the command with the runs."""

    @model_validator(mode="after")
    def _check_inside(self) -> Self:
        if self.inside > self.runs:
            raise ValueError(f"inside = {self.inside} exceeds runs = {self.runs}")
        return self


class CalibratedMachine(Frozen):
    """The machine on which `harness doctor --calibrate` measured the constants of a card."""

    cpu: str
    """The model name of the processor."""
    cores: int = Field(ge=1)
    """The number of cores that a process may use."""
    gpu: str | None = None
    """The name of the GPU; None if ranks compute on the host."""


class FittedResult(Frozen):
    """A result of a paper whose values supplied a constant: a claim, or the runs of a system in a figure."""

    claim: str = ""
    figure: str = ""
    system: str = ""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if bool(self.claim) == bool(self.figure) or bool(self.figure) != bool(self.system):
            raise ValueError("a fitted result is either a claim, or a figure and a system")
        return self


class PlexusModel(Frozen):
    """The Plexus paper's models of products, equation 4.4, and of bandwidths, equation 4.6.

    They are only used for the paper's figure 5. Predictions use the rates of the device and the links of the card.
    """

    flops: float = Field(ge=0)
    """`flops`, `forward`, `backward` and `intercept` are the coefficients of equation 4.4, which gives milliseconds
    (benchmarks/plexus_formulas.py)."""
    forward: float = Field(ge=0)
    backward: float = Field(ge=0)
    intercept: float = Field(0.0, ge=0)
    intra_gbs: float | None = Field(None, gt=0, allow_inf_nan=False)
    """GB per second within a node in equation 4.6; None means that of `links`."""
    node_gbs: float | None = Field(None, gt=0, allow_inf_nan=False)
    """GB per second into or out of a node in equation 4.6; None means that of `links`."""

    def replace_bandwidths(self, links: Links) -> Links:
        """Return the links with the bandwidths of equation 4.6."""
        named = {"intra_gbs": self.intra_gbs, "node_gbs": self.node_gbs}
        changed = {
            name: Constant(value=gbs, within=1.0, source="Plexus, equation 4.6")
            for name, gbs in named.items()
            if gbs
        }
        return links.model_copy(update={**changed, "peer_gbs": None} if changed else {})


class Builds(Frozen):
    """The Slurm jobs that build graphs. A build is one process and needs no GPU."""

    partition: str | None = None
    """`partition`, `qos` and `constraint` replace those of runs."""
    qos: str | None = None
    constraint: str | None = None
    sbatch: str = ""
    """Additional options of sbatch, instead of those of runs."""
    cpus: int = Field(default=1, ge=1)
    memory_mb: int = Field(default=0, ge=0)
    """The memory that a build requests, in MB; 0 requests none."""
    entries_per_second: Constant = Constant(
        value=2e7,
        within=8,
        source="ogbn-papers100M whole on two cores (benchmarks/results/building.md); other machines assumed",
    )
    """The speed of a build, from which its time limit follows."""


class Container(Frozen):
    """The container image in which ranks run. `harness run` itself runs outside, where srun is available."""

    runtime: Literal["apptainer", "shifter", "podman-hpc"]
    image: str = Field(min_length=1)
    """The file or name of an image that contains Python and the harness."""
    options: str = ""
    """Additional options of the runtime, such as --nv, --rocm or --gpu."""


class Slurm(Frozen):
    """How jobs of a machine request nodes from Slurm or another scheduler, and start ranks on them.

    These keys are not part of run ids. To pack or bind ranks in another way, write another card.
    """

    ranks_per_node: int = Field(ge=1)
    """The ranks on a node. The last node may have fewer."""
    cpus_per_rank: int = Field(1, ge=1)
    """The processors of a rank as Slurm counts them, including hardware threads."""
    gpus_per_node: int = Field(0, ge=0)
    """The GPUs that a job requests on each node, even for fewer ranks, so that no other job disturbs a measurement."""
    memory_mb: int = Field(0, ge=0)
    """The memory in MB that a job requests on each node; 0 requests none, for machines that allocate whole nodes."""
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str = ""
    """Additional options of sbatch, such as --exclusive, except those that other keys set."""
    scheduler: Literal["slurm", "flux", "pbs", "lsf"] = "slurm"
    """The program that starts ranks in an allocation: srun, `flux run`, mpiexec of PALS, or jsrun."""
    srun: str = ""
    """Additional options of that program, for example to bind ranks to cores and devices."""
    interfaces: tuple[str, ...] = ()
    """The network interfaces of a node. Ranks are spread over them in order, so that each uses the nearest one."""
    environment: dict[str, str] = {}
    """Environment variables of all ranks."""
    fabric: dict[str, str] = {}
    """Environment variables of ranks in runs on several nodes."""
    networks: tuple[str, ...] = ()
    """The names that NCCL's log may give the fabric. `harness doctor --links` rejects any other network."""
    modules: tuple[str, ...] = ()
    """Environment modules to load before the harness starts. `harness doctor` reports those that are not loaded."""
    python: str = ""
    """The command that starts Python in a rank (default: this interpreter, or `python` in a container)."""
    container: Container | None = None
    """The container of the ranks; None starts them directly on the node."""
    local: str = "/tmp"
    """A folder on a local disk or in the memory of each node, for caches and staged archives."""
    stage: tuple[str, ...] = ()
    """Tar archives that are unpacked into `local` on each node before the first ranks of a job start."""
    minutes: float = Field(30, gt=0)
    """The time limit of a run. A prediction or an earlier similar run may raise it."""
    shared_nodes: int = Field(1, ge=0)
    """Launches of runs on at most this many nodes share a job; on more nodes each launch has a separate job."""
    job_minutes: float = Field(240, gt=0)
    """The time limit of a shared job."""
    builds: Builds | None = None
    """The jobs that build graphs; None gives them the same nodes as runs."""


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
"""The environment variables of the allocators of glibc, jemalloc, tcmalloc, mimalloc and torch. No others are accepted,
because a spec may be untrusted, and some variables make a program run code."""


class Machine(Frozen):
    """The keys of a machine that change the speed of a run. They are part of its run id."""

    name: str = Field(max_length=100)
    description: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    engine: Literal["gloo", "nccl"] = "gloo"
    composed_from: int | None = Field(None, ge=0)
    """The size in bytes from which the harness composes broadcasts, gathers, scatters and all-to-alls of point-to-point
    rounds instead of calling gloo, which is faster if links are the bottleneck (benchmarks/results/links.md). None
    always calls gloo."""
    threads_per_rank: int = Field(1, ge=1)
    allocator: dict[str, str] = {}
    """Environment variables of the memory allocator, which are set in all ranks and recorded."""

    @field_validator("allocator")
    @classmethod
    def _check_allocator(cls, settings: dict[str, str]) -> dict[str, str]:
        for name, value in settings.items():
            if name not in ALLOCATOR:
                accepted = ", ".join(sorted(ALLOCATOR))
                raise ValueError(
                    f"{format_value(name)} is not a variable of an allocator; accepted are {accepted}"
                )
            if not re.fullmatch(r"[\w.,:;+-]{0,200}", value):
                raise ValueError(
                    f"{name} = {format_value(value)}: a setting contains only letters, digits and .,:;+-"
                )
        return settings

    @field_validator("composed_from")
    @classmethod
    def _check_composed_from(cls, size: int | None, known: ValidationInfo) -> int | None:
        if size is not None and known.data.get("engine") == "nccl":
            raise ValueError("it is only for the engine gloo")
        return size


class MachineCard(Machine):
    """A whole machine card. The keys that `Machine` lacks, for predictions and Slurm, are not part of run ids."""

    memory_gb: float | None = Field(None, gt=0)
    """The memory of a rank in GB of 2^30 bytes, which `largest` in an experiment fills."""
    rates: Rates | None = None
    """The speed of a rank's device; None if the machine has no predictions."""
    links: Links | None = None
    measured_on: CalibratedMachine | None = None
    """The machine on which `rates` were measured; None if they were not, or if it is unknown."""
    fitted_to: tuple[FittedResult, ...] = ()
    """The results of papers to which constants of the rates and links were fitted. They cannot test a prediction."""
    checked: CheckedRuns | None = None
    """The runs against which predictions with these constants were held; None if there were none."""
    plexus_model: PlexusModel | None = None
    hardware: dict[str, float] = {}
    """Other facts about the machine, which are only compared with the claims of papers."""
    slurm: Slurm | None = None
    """The jobs of a cluster; None for a machine of one node."""
    start_seconds: float = Field(120, gt=0, allow_inf_nan=False)
    """The time limit in seconds for the start of the first rank. Raise it if torch is on a slow file system."""


MACHINES = Path("config") / "machines"


def load_machine(root: Path, name: str) -> Machine:
    """Return the part of a machine card that belongs to a spec."""
    card = load_machine_card(root, name)
    return Machine(**{key: getattr(card, key) for key in Machine.model_fields})


def load_machine_card(root: Path, name: str) -> MachineCard:
    """Return the machine card config/machines/NAME.yaml of a project."""
    if name not in list_machines(root):
        raise unknown_name_error("machine", name, list_machines(root), f"Cards live in {MACHINES}/.")
    return validate(
        MachineCard, {"name": name, **read_machine_document(root, name)}, str(MACHINES / f"{name}.yaml")
    )


OWN_KEYS = ("description", "measured_on", "checked")
"""The keys that say something of one machine only. A card does not take them from the card it is like."""


def read_machine_document(root: Path, name: str, *above: str) -> dict[str, Any]:
    """Read the keys of an existing card, completed from the card that its key `like` names; sections key by key.

    `above` are the cards that are like this one.
    """
    where = str(MACHINES / f"{name}.yaml")
    document = read_yaml(root / where, where)
    other = document.pop("like", None)
    if other is None:
        return document
    known = [each for each in list_machines(root) if each not in (name, *above)]
    if other not in known:
        raise unknown_name_error(f"{where}: like", other, known, "It names another machine card.")
    completed = {
        key: value
        for key, value in read_machine_document(root, other, name, *above).items()
        if key not in OWN_KEYS
    }
    for key, value in document.items():
        is_section = isinstance(value, dict) and isinstance(completed.get(key), dict)
        completed[key] = {**completed[key], **value} if is_section else value
    return completed


def load_start_seconds(root: Path, name: str) -> float:
    """Return the time limit for starting a rank; the default for a machine without a card in this project."""
    if name in list_machines(root):
        return load_machine_card(root, name).start_seconds
    default: float = MachineCard.model_fields["start_seconds"].default
    return default


def list_machines(root: Path) -> list[str]:
    """Return the names of the machine cards of a project, sorted."""
    return sorted(path.stem for path in (root / MACHINES).glob("*.yaml"))
