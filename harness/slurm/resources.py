"""The resources of a job, by the keys of Snakemake's executor, and what the partitions of a cluster forbid.

The executor changes some keys. With GPUs, `tasks` would become tasks per GPU; `mpi` asks for more than one task, and
its presence alone decides whether the executor or the rule calls srun. So GPUs are never given as `gres` or `gpu`, and
a single rank has no `mpi`: Snakemake leaves out a key whose value is None.
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

from harness.documents import read_yaml
from harness.spec.machine_card import Builds, Slurm, load_machine_card
from harness.validation import Frozen, validate

# config/site.yaml: the user's account and choices for the place where jobs run. Not committed, and optional.

SITE_FILE = Path("config") / "site.yaml"


class Site(Frozen):
    """The keys of the file, all optional. A key that the machine card has too overrides the card."""

    machine: str | None = None
    """The machine card of experiments that name none."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str | None = None
    minutes: float | None = Field(None, gt=0)
    job_minutes: float | None = Field(None, gt=0)


def load_site(root: Path) -> Site:
    """The keys of the file; without a file, none."""
    path = root / SITE_FILE
    keys = read_yaml(path, str(SITE_FILE), may_be_empty=True) if path.exists() else {}
    return validate(Site, keys, str(SITE_FILE))


def slurm_of(root: Path, machine: str, site: Site) -> Slurm | None:
    """The `slurm` of a machine card with the site's overrides; None for a machine without Slurm."""
    slurm = load_machine_card(root, machine).slurm
    if slurm is None:
        return None
    overrides = {key: getattr(site, key) for key in Site.model_fields.keys() & Slurm.model_fields.keys()}
    return slurm.model_copy(update={key: value for key, value in overrides.items() if value is not None})


# Nodes and jobs.


class Geometry(NamedTuple):
    """The nodes of a run. Ranks fill one node after the other."""

    nodes: int
    per_node: int
    """Ranks on a full node."""


def geometry(ranks: int, slurm: Slurm) -> Geometry:
    """The fewest nodes that hold the ranks."""
    return Geometry(-(-ranks // slurm.ranks_per_node), min(ranks, slurm.ranks_per_node))


def devices(slurm: Slurm) -> list[str]:
    """The option for GPUs, for jobs and steps alike: a step without it sees no device of the job, or one a rank."""
    return [f"--gpus-per-node={slurm.gpus_per_node}"] if slurm.gpus_per_node else []


Resources = dict[str, int | str | None]

NAMES = ("mpi", "nodes", "tasks", "tasks_per_node", "cpus_per_task", "mem_mb", "runtime", "slurm_extra")
"""The keys of every job; some of their values are None."""
MEMORY_MB = 5000
"""The memory of a build (4 GiB and the libraries) and of runs on small graphs, if no card gives a node's memory."""


def job(ranks: Collection[int], slurm: Slurm, minutes: float) -> Resources:
    """A job whose runs go one after the other; `ranks` has the number of ranks of each."""
    shape = geometry(max(ranks), slurm)
    spread = shape.per_node == 1
    return {
        "mpi": None if max(ranks) == 1 else "srun",
        "nodes": shape.nodes,
        "tasks": max(ranks) if spread else None,
        "tasks_per_node": None if spread else shape.per_node,
        "cpus_per_task": slurm.cpus_per_rank,
        "mem_mb": slurm.memory_mb,
        "runtime": ceil(minutes),
        "slurm_extra": " ".join([*devices(slurm), *slurm.sbatch.split()]) or None,
    }


def one_node(processors: int, slurm: Slurm | None, minutes: float) -> Resources:
    """A job of one process on one node: a build, or a run on a machine whose card has no Slurm."""
    asked = {**dict.fromkeys(NAMES), "mem_mb": MEMORY_MB} if slurm is None else job([1], slurm, minutes)
    return asked | {"nodes": 1, "tasks": 1, "cpus_per_task": processors, "runtime": ceil(minutes)}


def place(site: Site, slurm: Slurm | None) -> Resources:
    """The account, partition, QOS and constraint of jobs: only the keys that are set. A user's profile may add more."""
    keys = {
        "slurm_account": site.account,
        "slurm_partition": slurm.partition if slurm else site.partition,
        "qos": slurm.qos if slurm else site.qos,
        "constraint": slurm.constraint if slurm else site.constraint,
    }
    return {key: value for key, value in keys.items() if value is not None}


AROUND = 5.0
"""Minutes of a job before its work and after its end."""
UNKNOWN_MINUTES = 30.0
"""The time of a build of unknown size, and of a job on a machine whose card has no Slurm."""


def build(site: Site, slurm: Slurm | None, entries: int | None) -> Resources:
    """A job that builds a graph, with its place: a node as the card's `builds` names it, else one like those of runs.

    The time follows from the entries of the adjacency matrix and from the measured speed of the builder.
    """
    speed = Builds() if slurm is None or slurm.builds is None else slurm.builds
    rate = speed.entries_per_second.value / speed.entries_per_second.within
    minutes = UNKNOWN_MINUTES if entries is None else entries / rate / 60 + AROUND
    if slurm is None or slurm.builds is None:
        processors = slurm.ranks_per_node * slurm.cpus_per_rank if slurm else 1
        return place(site, slurm) | one_node(processors, slurm, minutes)
    builds = slurm.builds
    keys = ("partition", "qos", "constraint")
    named = {key: getattr(builds, key) or getattr(slurm, key) for key in keys}
    there = slurm.model_copy(
        update={**named, "sbatch": builds.sbatch, "gpus_per_node": 0, "memory_mb": builds.memory_mb}
    )
    return place(site, there) | one_node(builds.cpus, there, minutes)


# The partitions of a cluster, and what they forbid.

PARTITIONS = (
    "sinfo",
    "--noheader",
    "--exact",
    "--format=%P|%a|%l|%s|%D|%c|%m|%G|%f",
)
"""The command whose answer `partitions_of` reads: a line for each kind of node of each partition."""


class NodeKind(NamedTuple):
    """The nodes of a partition that are alike."""

    nodes: int
    cpus: int
    memory_mb: int
    gpus: int
    features: frozenset[str]


class SlurmPartition(NamedTuple):
    """A partition, as sinfo shows it. A limit that is None does not exist."""

    name: str
    default: bool
    up: bool
    minutes: float | None
    most_nodes: int | None
    kinds: tuple[NodeKind, ...]


def partitions_of(answer: str) -> dict[str, SlurmPartition]:
    """The partitions by name, from the answer to PARTITIONS."""
    found: dict[str, SlurmPartition] = {}
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != PARTITIONS[-1].count("|") + 1:
            continue
        name, up, limit, size, *node = cells
        seconds, most = as_seconds(limit), size.rpartition("-")[2]
        known = found.get(name.rstrip("*"))
        found[name.rstrip("*")] = SlurmPartition(
            name.rstrip("*"),
            name.endswith("*"),
            up == "up",
            None if seconds is None else seconds / 60,
            int(most) if most.isdigit() else None,
            (*(known.kinds if known else ()), _kind(*node)),
        )
    return found


def _kind(count: str, cpus: str, memory: str, gres: str, features: str) -> NodeKind:
    gpus = sum(int(number) for number in re.findall(r"\bgpu(?::[\w.-]*[A-Za-z_][\w.-]*)?:(\d+)", gres))
    numbers = [int("".join(re.findall(r"^\d+", text)) or 0) for text in (count, cpus, memory)]
    return NodeKind(numbers[0], numbers[1], numbers[2], gpus, frozenset(features.split(",")))


def forbidden(asked: Mapping[str, Any], partitions: Mapping[str, SlurmPartition]) -> str | None:
    """The reason why no partition can ever start a job with these resources, or None.

    The job names its partition, or any partition may take it: some sites choose one by QOS and constraint.
    """
    name = asked.get("slurm_partition")
    if not partitions:
        return None
    if name and name not in partitions:
        return f"there is no partition {name}: name one of {', '.join(partitions)} as `partition` in config/site.yaml"
    each = [partitions[name]] if name else list(partitions.values())
    reasons = [_forbids(partition, asked) for partition in each]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _forbids(partition: SlurmPartition, asked: Mapping[str, Any]) -> str | None:
    """The first limit of a partition that a job exceeds, with the way out."""
    name, minutes, nodes = partition.name, asked.get("runtime") or 0, asked.get("nodes") or 1
    if partition.minutes is not None and minutes > partition.minutes:
        return (
            f"the partition {name} allows {partition.minutes:g} minutes and the job asks for {minutes}: "
            "lower `minutes` or `job_minutes` in config/site.yaml, or name another `partition`"
        )
    if partition.most_nodes is not None and nodes > partition.most_nodes:
        return (
            f"the partition {name} allows {partition.most_nodes} nodes a job and the job asks for {nodes}: "
            "name another `partition` in config/site.yaml, or ask for fewer ranks"
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
        "`partition` in config/site.yaml, or a machine card whose nodes are those of the partition"
    )


TIME = re.compile(r"((?P<days>\d+)-)?((?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")


def as_seconds(text: str) -> float | None:
    """1-02:03:04 or 3:04 as seconds; UNLIMITED and the like as None."""
    match = TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


# The controller, which may be away for minutes: jobs go on meanwhile, and its commands fail.

UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|Connection refused|Socket timed out|Zero Bytes were transmitted"
    r"|Transport endpoint is not connected|controller in standby mode|Slurm temporarily unable"
)
"""What Slurm's commands print while no controller answers."""
OUTAGE = 900.0
"""Seconds for which a controller may be away: ten minutes, and what commands take to notice that it is back."""
PATIENCE, AGAIN = 30.0, 5.0
"""Seconds for which a command may take, and until a controller that did not answer is asked again."""


def ask(*command: str, outage: float = 0.0) -> str | None:
    """The output of a command of Slurm; None if the command is absent or fails.

    A controller that does not answer is asked again for `outage` seconds, which is said once.
    """
    deadline, told = time.monotonic() + outage, False
    while True:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
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
        if not told:
            minutes = f"{outage / 60:.0f} minutes"
            print(
                f"No Slurm controller answers {command[0]}: it is asked again for {minutes}.",
                file=sys.stderr,
                flush=True,
            )
        told = True
        time.sleep(AGAIN)
