"""The master address of ranks that another launcher started: a port of the job's first host. Does not import torch."""

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from harness.base.errors import UserError
from harness.comm.launchers import TORCHRUN, detect_launcher

HOST = re.compile(r"(?P<stem>[^\[\],]+)(\[(?P<number>\d+)[^\]]*\])?(?P<rest>[^\[\],]*)")
FIRST_PORT, PORTS = 20_000, 12_000
"""Ports below the kernel's ephemeral range."""
HOST_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")


def is_single_machine(environ: Mapping[str, str]) -> bool:
    """Return True if all ranks are on this machine, according to the launcher."""
    launcher = detect_launcher(environ)
    return launcher is None or environ.get(launcher.local_world) == environ[launcher.world]


def get_master_address(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables MASTER_ADDR and MASTER_PORT for ranks of another launcher; empty if they are set already.

    Concurrent worlds have different ports if their launcher identifies them.
    """
    launcher = detect_launcher(environ)
    if launcher is None or launcher is TORCHRUN or {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return {}
    here = is_single_machine(environ)
    host = environ.get("MASTER_ADDR") or ("127.0.0.1" if here else _find_first_host(environ))
    if not here and "MASTER_PORT" not in environ and not _list_job_names(environ):
        raise UserError(
            f"The ranks are on several machines, and {launcher.name} does not tell them the name of their job, from "
            "which a port would follow. Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port of it."
        )
    port = environ.get("MASTER_PORT") or str(FIRST_PORT + crc32(get_world_name(environ).encode()) % PORTS)
    return {"MASTER_ADDR": host, "MASTER_PORT": port}


def get_world_name(environ: Mapping[str, str]) -> str:
    """Return a name of the world that all ranks know: the job, or on one machine the parent process, and the size."""
    launcher = detect_launcher(environ)
    size = environ[launcher.world] if launcher else "1"
    parent = [str(os.getppid())] if is_single_machine(environ) else []
    return ".".join([*(_list_job_names(environ) or parent), size])


def _list_job_names(environ: Mapping[str, str]) -> list[str]:
    """Return the values by which the launcher identifies the world, or an empty list if it sets none."""
    launcher = detect_launcher(environ)
    names = [environ.get(name, "") for name in launcher.job] if launcher else []
    return names if any(names) else []


def _find_first_host(environ: Mapping[str, str]) -> str:
    """Return the first host in the job's list."""
    if nodes := environ.get("SLURM_STEP_NODELIST"):
        return parse_first_host(nodes)
    for name in HOST_FILES:
        with suppress(OSError, IndexError):
            return Path(environ.get(name, "")).read_text(encoding="utf-8").split()[0]
    if "FLUX_TASK_RANK" in environ:
        with suppress(OSError, subprocess.SubprocessError):
            hosts = subprocess.run(
                ["flux", "hostlist", "local"],
                capture_output=True,
                text=True,
                errors="replace",
                check=True,
                timeout=10,
            )
            return parse_first_host(hosts.stdout.strip())
    raise UserError(
        "The ranks are on several machines, and no list of hosts was found. Set MASTER_ADDR to the host of rank 0."
    )


def parse_first_host(nodes: str) -> str:
    """Return the first host of a list: nid001004 for nid[001004-001007,001012],login1."""
    first = HOST.match(nodes)
    if first is None:
        raise UserError(f"{nodes!r} is not a list of hosts. Set MASTER_ADDR and MASTER_PORT.")
    return f"{first['stem']}{first['number'] or ''}{first['rest']}"
