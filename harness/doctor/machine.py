"""This machine: cores, memory, GPUs and what they speak through, network interfaces."""

import os
import socket
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from harness.doctor.examined import Examined, answer

DEVICES = Path("/sys/class/net")
NO_GPU = "none here: strategies run on CPU ranks over gloo"


def machine() -> Iterator[Examined]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Examined("cores", f"{cores}: that many ranks run at full speed")
    yield Examined("memory", f"{memory / 2**30:.0f} GiB")
    yield Examined("GPU", _gpus())
    yield Examined("NCCL", _nccl())
    yield Examined("interfaces", ", ".join(map(_interface, _up())) or "none is up but the loopback")
    yield _name()


def _gpus() -> str:
    nvidia = answer("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if nvidia:
        names = nvidia.splitlines()
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    amd = answer("rocm-smi", "--showid") or ""
    shown = {line.split(":")[0] for line in amd.splitlines() if line.startswith("GPU[")}
    return f"{len(shown)} by rocm-smi" if shown else NO_GPU


def _nccl() -> str:
    """By the package beside torch: whether it works is shown by `harness doctor --links`."""
    named = [(str(one.metadata["Name"]), one.version) for one in distributions()]
    found = [f"{name} {version}" for name, version in named if name.startswith(("nvidia-nccl", "rccl"))]
    return ", ".join(found) or "no package of it: only gloo, or torch's own"


def _up() -> list[Path]:
    places = sorted(DEVICES.iterdir()) if DEVICES.is_dir() else []
    return [place for place in places if place.name != "lo" and _read(place / "operstate") == "up"]


def _interface(place: Path) -> str:
    speed = _read(place / "speed")
    return f"{place.name} ({int(speed) / 1000:g} Gbit/s)" if speed.isdigit() else place.name


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _name() -> Examined:
    """Where gloo listens if no interface is named. A name that stands for the loopback is heard by no other node."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Examined("name", f"{name} has no address: name `interfaces` in the machine's card")
    lonely = ", the loopback: over several nodes the machine's card must name `interfaces`"
    return Examined("name", f"{name} is {address}" + (lonely if address.startswith("127.") else ""))
