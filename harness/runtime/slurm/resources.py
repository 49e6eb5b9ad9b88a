"""The resources of a job, by the keys of Snakemake's executor, and the limits of a cluster's partitions.

The executor interprets some keys. With `gres` or `gpu`, `tasks` would become tasks per GPU, so GPUs are requested in
other words. With `mpi`, the rule calls srun instead of the executor, so a single rank has no `mpi`. Snakemake leaves
out keys whose value is None.
"""

import re
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from harness.base.documents import read_yaml
from harness.base.validation import Frozen, validate
from harness.spec.machine_card import Builds, Slurm, load_machine_card

# config/site.yaml: the user's account and settings for the site where jobs run. Optional, and not committed.

SITE_FILE = Path("config") / "site.yaml"


class Site(Frozen):
    """The keys of config/site.yaml, all optional. They override the keys of the machine card."""

    machine: str | None = None
    """The machine card for experiments that do not name one."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str | None = None
    minutes: float | None = Field(None, gt=0)
    job_minutes: float | None = Field(None, gt=0)


def load_site(root: Path) -> Site:
    """Return the settings in config/site.yaml; the defaults without such a file."""
    path = root / SITE_FILE
    keys = read_yaml(path, str(SITE_FILE), may_be_empty=True) if path.exists() else {}
    return validate(Site, keys, str(SITE_FILE))


def load_slurm(root: Path, machine: str, site: Site) -> Slurm | None:
    """Return the `slurm` section of a machine card with the site's overrides; None for a machine without Slurm."""
    slurm = load_machine_card(root, machine).slurm
    if slurm is None:
        return None
    overrides = {key: getattr(site, key) for key in Site.model_fields.keys() & Slurm.model_fields.keys()}
    return slurm.model_copy(update={key: value for key, value in overrides.items() if value is not None})


# Nodes and jobs.


class Geometry(NamedTuple):
    """The nodes of a run. Ranks fill one node after another."""

    nodes: int
    per_node: int
    """Ranks on a full node."""


def plan_nodes(ranks: int, slurm: Slurm) -> Geometry:
    """Return the fewest nodes that hold the ranks."""
    return Geometry(-(-ranks // slurm.ranks_per_node), min(ranks, slurm.ranks_per_node))


def gpu_options(slurm: Slurm) -> list[str]:
    """Return the option for GPUs. Steps need it as jobs do: without it they see no GPU, or one per rank."""
    return [f"--gpus-per-node={slurm.gpus_per_node}"] if slurm.gpus_per_node else []


Resources = dict[str, int | str | None]

JOB_KEYS = ("mpi", "nodes", "tasks", "tasks_per_node", "cpus_per_task", "mem_mb", "runtime", "slurm_extra")
"""The keys of every job; some values are None."""
MEMORY_MB = 5000
"""The memory of a build (4 GiB and the libraries), and of runs if the machine card has no Slurm section."""


def request_job(ranks: Collection[int], slurm: Slurm, minutes: float) -> Resources:
    """Return the resources of a job whose runs follow each other. `ranks` holds the number of ranks of each run."""
    shape = plan_nodes(max(ranks), slurm)
    spread = shape.per_node == 1
    return {
        "mpi": None if max(ranks) == 1 else "srun",
        "nodes": shape.nodes,
        "tasks": max(ranks) if spread else None,
        "tasks_per_node": None if spread else shape.per_node,
        "cpus_per_task": slurm.cpus_per_rank,
        "mem_mb": slurm.memory_mb,
        "runtime": ceil(minutes),
        "slurm_extra": " ".join([*gpu_options(slurm), *slurm.sbatch.split()]) or None,
    }


def request_node(processors: int, slurm: Slurm | None, minutes: float) -> Resources:
    """Return the resources of a job on one node: a build, or a run on a machine whose card has no Slurm section."""
    if slurm is None:
        job: Resources = {**dict.fromkeys(JOB_KEYS), "mem_mb": MEMORY_MB}
    else:
        job = request_job([1], slurm, minutes)
    return job | {"nodes": 1, "tasks": 1, "cpus_per_task": processors, "runtime": ceil(minutes)}


def request_place(site: Site, slurm: Slurm | None) -> Resources:
    """Return the account, partition, QOS and constraint of jobs, as far as they are set. A profile may add others."""
    keys = {
        "slurm_account": site.account,
        "slurm_partition": slurm.partition if slurm else site.partition,
        "qos": slurm.qos if slurm else site.qos,
        "constraint": slurm.constraint if slurm else site.constraint,
    }
    return {key: value for key, value in keys.items() if value is not None}


OVERHEAD_MINUTES = 5.0
"""Minutes of a job in addition to its work."""
UNKNOWN_MINUTES = 30.0
"""The time limit of a build of unknown size, and of a job on a machine whose card has no Slurm section."""


def request_build(site: Site, slurm: Slurm | None, entries: int | None) -> Resources:
    """Return the resources and the place of a job that builds a graph.

    The node is described by the card's `builds`, or is like the nodes of runs. The time limit follows from the number
    of entries of the adjacency matrix and the measured speed of the builder.
    """
    speed = Builds() if slurm is None or slurm.builds is None else slurm.builds
    rate = speed.entries_per_second.value / speed.entries_per_second.within
    minutes = UNKNOWN_MINUTES if entries is None else entries / rate / 60 + OVERHEAD_MINUTES
    if slurm is None or slurm.builds is None:
        processors = slurm.ranks_per_node * slurm.cpus_per_rank if slurm else 1
        return request_place(site, slurm) | request_node(processors, slurm, minutes)
    builds = slurm.builds
    keys = ("partition", "qos", "constraint")
    named = {key: getattr(builds, key) or getattr(slurm, key) for key in keys}
    there = slurm.model_copy(
        update={**named, "sbatch": builds.sbatch, "gpus_per_node": 0, "memory_mb": builds.memory_mb}
    )
    return request_place(site, there) | request_node(builds.cpus, there, minutes)


# The partitions of a cluster, and their limits.

PARTITION_QUERY = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%s|%D|%c|%m|%G|%f")
"""The command whose output `parse_partitions` reads: a line for each kind of node of each partition."""


class NodeKind(NamedTuple):
    """Equal nodes of a partition."""

    nodes: int
    cpus: int
    memory_mb: int
    gpus: int
    features: frozenset[str]


class SlurmPartition(NamedTuple):
    """A partition as sinfo shows it. None means no limit."""

    name: str
    default: bool
    up: bool
    minutes: float | None
    most_nodes: int | None
    kinds: tuple[NodeKind, ...]


def parse_partitions(answer: str) -> dict[str, SlurmPartition]:
    """Return the partitions by name, from the output of PARTITION_QUERY."""
    partitions: dict[str, SlurmPartition] = {}
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != PARTITION_QUERY[-1].count("|") + 1:
            continue
        starred, state, limit, size, *node = cells
        name, seconds, most_nodes = starred.rstrip("*"), parse_seconds(limit), size.rpartition("-")[2]
        earlier_kinds = partitions[name].kinds if name in partitions else ()
        partitions[name] = SlurmPartition(
            name,
            default=starred.endswith("*"),
            up=state == "up",
            minutes=None if seconds is None else seconds / 60,
            most_nodes=int(most_nodes) if most_nodes.isdigit() else None,
            kinds=(*earlier_kinds, _parse_node_kind(*node)),
        )
    return partitions


def _parse_node_kind(count: str, cpus: str, memory: str, gres: str, features: str) -> NodeKind:
    gpus = sum(int(number) for number in re.findall(r"\bgpu(?::[\w.-]*[A-Za-z_][\w.-]*)?:(\d+)", gres))
    numbers = [int("".join(re.findall(r"^\d+", text)) or 0) for text in (count, cpus, memory)]
    return NodeKind(numbers[0], numbers[1], numbers[2], gpus, frozenset(features.split(",")))


def explain_refusal(asked: Mapping[str, Any], partitions: Mapping[str, SlurmPartition]) -> str | None:
    """Return the reason why no partition can ever start a job with these resources; None if one can.

    A job without a partition may start on any: some sites choose one by QOS and constraint.
    """
    name = asked.get("slurm_partition")
    if not partitions:
        return None
    if name and name not in partitions:
        return f"there is no partition {name}: name one of {', '.join(partitions)} as `partition` in config/site.yaml"
    each = [partitions[name]] if name else list(partitions.values())
    reasons = [_explain_limit(partition, asked) for partition in each]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _explain_limit(partition: SlurmPartition, asked: Mapping[str, Any]) -> str | None:
    """Return the first limit of a partition that a job exceeds, and what to change; None if it exceeds none."""
    name, minutes, nodes = partition.name, asked.get("runtime") or 0, asked.get("nodes") or 1
    if partition.minutes is not None and minutes > partition.minutes:
        return (
            f"the partition {name} allows {partition.minutes:g} minutes and the job asks for {minutes}: "
            "lower `minutes` or `job_minutes` in config/site.yaml, or name another `partition`"
        )
    if partition.most_nodes is not None and nodes > partition.most_nodes:
        return (
            f"the partition {name} allows {partition.most_nodes} nodes per job and the job asks for {nodes}: "
            "name another `partition` in config/site.yaml, or use fewer ranks"
        )
    tasks = asked.get("tasks_per_node") or -(-(asked.get("tasks") or 1) // nodes)
    cpus, memory = tasks * (asked.get("cpus_per_task") or 1), asked.get("mem_mb") or 0
    gpus = int((re.search(r"--gpus-per-node=(\d+)", asked.get("slurm_extra") or "") or [0, 0])[1])
    constraint = asked.get("constraint") or ""
    features = set() if re.search(r"[^\w&.-]", constraint) else set(constraint.split("&")) - {""}
    enough = [
        kind
        for kind in partition.kinds
        if kind.cpus >= cpus and kind.memory_mb >= memory and kind.gpus >= gpus and kind.features >= features
    ]
    if (there := sum(kind.nodes for kind in enough)) >= nodes:
        return None
    wanted = [f"{cpus} processors"] + [f"{memory} MB"] * bool(memory) + [f"{gpus} GPUs"] * bool(gpus)
    wanted += [f"the feature {feature}" for feature in sorted(features)]
    largest = max(partition.kinds, key=lambda kind: (kind.gpus, kind.cpus))
    return (
        f"the partition {name} has {there} nodes with {', '.join(wanted)}, and the job asks for {nodes}; its largest "
        f"nodes have {largest.cpus} processors, {largest.memory_mb} MB and {largest.gpus} GPUs: name another "
        "`partition` in config/site.yaml, or a machine card that describes the nodes of this partition"
    )


TIME = re.compile(r"((?P<days>\d+)-)?((?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")


def parse_seconds(text: str) -> float | None:
    """Return the seconds of a time as 1-02:03:04 or 3:04; None for other text, as UNLIMITED."""
    match = TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


# The controller may be unreachable for minutes. Jobs continue meanwhile, but Slurm's commands fail.

UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|Connection refused|Socket timed out|Zero Bytes were transmitted"
    r"|Transport endpoint is not connected|controller in standby mode|Slurm temporarily unable"
)
"""What Slurm's commands print while no controller answers."""
OUTAGE_SECONDS = 900.0
"""Seconds for which a controller may be unreachable: ten minutes, and the time until commands notice its return."""
COMMAND_SECONDS, RETRY_SECONDS = 30.0, 5.0
"""Seconds that a command may take, and seconds between attempts to reach a controller."""


def ask_slurm(*command: str, outage: float = 0.0) -> str | None:
    """Return the output of a Slurm command; None if the command is missing or fails.

    If no controller answers, the command is repeated for `outage` seconds, and one message says so.
    """
    deadline, is_reported = time.monotonic() + outage, False
    while True:
        try:
            # The name or the folder of any job may have bytes that are not text.
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS
            )
        except OSError:
            return None
        except subprocess.TimeoutExpired:
            away = True
        else:
            if done.returncode == 0:
                return done.stdout.strip()
            away = UNREACHABLE.search(done.stderr) is not None
        if not away or time.monotonic() > deadline:
            return None
        if not is_reported:
            message = f"No Slurm controller answers {command[0]}. Trying again for {outage / 60:.0f} minutes."
            print(message, file=sys.stderr, flush=True)
        is_reported = True
        time.sleep(RETRY_SECONDS)
