"""The GPUs of a machine as ranks find them: driver, links, NUMA nodes, torch's build, devices against ranks, peers.

Torch is imported only where a command of the driver shows a GPU.
"""

import os
from collections.abc import Iterator
from importlib.metadata import distributions
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from harness.doctor.examined import Examined, answer, text_of

NO_GPU = "none on this machine: strategies run on CPU ranks over gloo"
NODES, BUS = Path("/sys/devices/system/node"), Path("/sys/bus/pci/devices")


class Card(NamedTuple):
    """What nvidia-smi says of a GPU."""

    name: str
    driver_version: str
    bus: str
    generation: str
    lanes: str


QUERY = "--query-gpu=name,driver_version,pci.bus_id,pcie.link.gen.current,pcie.link.width.current"


def gpus() -> Iterator[Examined]:
    """All that is known of the GPUs, and of the library of their collectives."""
    shown = answer("nvidia-smi", QUERY, "--format=csv,noheader") or ""
    cards = [
        Card(*line.split(", ")) for line in shown.splitlines() if line.count(", ") == len(Card._fields) - 1
    ]
    names = [card.name for card in cards] or _of_amd()
    yield Examined(
        "GPU", ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or NO_GPU
    )
    yield Examined("NCCL", _nccl())
    if cards:
        yield Examined("driver", ", ".join(sorted({card.driver_version for card in cards})))
        yield Examined("PCIe", ", ".join(f"generation {card.generation} x{card.lanes}" for card in cards))
        yield from _nearness(cards)
    if names:
        yield from _in_torch()


def _of_amd() -> list[str]:
    lines = (answer("rocm-smi", "--showid") or "").splitlines()
    return ["GPU by rocm-smi"] * len({line.split(":")[0] for line in lines if line.startswith("GPU[")})


def _nccl() -> str:
    """The NCCL package beside torch. Only `harness doctor --links` shows whether NCCL works."""
    packages = [(str(each.metadata["Name"]), each.version) for each in distributions()]
    nccl = [f"{name} {version}" for name, version in packages if name.startswith(("nvidia-nccl", "rccl"))]
    return ", ".join(nccl) or "no package of it: only gloo, or torch's own"


def _nearness(cards: list[Card]) -> Iterator[Examined]:
    """The NUMA node of each GPU. A rank that may use no core of the node copies through the other processor."""
    places = [text_of(BUS / card.bus.lower().removeprefix("0000") / "numa_node") for card in cards]
    if not any(place.isdigit() for place in places):
        return
    allowed = os.sched_getaffinity(0)
    far = [
        str(number)
        for number, place in enumerate(places)
        if place.isdigit() and not allowed & set(_cores(text_of(NODES / f"node{place}" / "cpulist")))
    ]
    state = f"; this process may use no core near GPU {', '.join(far)}" if far else ""
    yield Examined("NUMA", f"the GPUs are at the nodes {', '.join(places)}{state}")


def _cores(listed: str) -> set[int]:
    """The cores of a list such as 0-3,8-11."""
    spans = [span.partition("-") for span in listed.split(",") if span]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def _in_torch() -> Iterator[Examined]:
    """What torch makes of the GPUs that the driver shows."""
    import torch

    from harness.comm.engine import VISIBLE

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    if not (torch.version.cuda or torch.version.hip):
        idle = f"{torch.__version__} is for neither CUDA nor ROCm, and the GPUs stay idle"
        yield Examined("torch's build", f"{idle}: README.md says which torch to install", missing=True)
        return
    if not torch.cuda.is_available():
        hiding = [f"{name}={os.environ[name]}" for name in VISIBLE if name in os.environ]
        reason = f"{' '.join(hiding)} hides them" if hiding else f"the driver may be too old for {build}"
        yield Examined("torch's build", f"{torch.__version__} finds no GPU: {reason}", missing=True)
        return
    yield Examined("torch's build", f"{torch.__version__} for {build}")
    devices = torch.cuda.device_count()
    yield _seen(devices)
    apart = [
        f"{one} and {other}"
        for one, other in combinations(range(devices), 2)
        if not torch.cuda.can_device_access_peer(one, other)
    ]
    if devices > 1:
        yield Examined(
            "peers", f"no direct access between {', '.join(apart)}" if apart else "direct access between all"
        )
    yield Examined("self-test", "harness check cagnet-1d --quick --machine local-gpu takes a minute")


def _seen(devices: int) -> Examined:
    """The devices that torch sees, against the ranks that Slurm starts on a node."""
    seen, ranks = f"torch sees {devices}", os.environ.get("SLURM_NTASKS_PER_NODE", "")
    if ranks.isdigit() and int(ranks) > devices:
        advice = "start at most as many ranks as there are devices, or ask for more devices"
        return Examined("devices", f"{seen}, and {ranks} ranks start on a node: {advice}", missing=True)
    return Examined("devices", f"{seen}: that many ranks, each with a GPU of its own")
