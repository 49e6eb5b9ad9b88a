"""Slurm as it is found from here: on a login node, or inside a job."""

import getpass
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.doctor.machine import Examined, answer
from harness.errors import UserError
from harness.slurm.site import FILE, Site, load_site, slurm_of
from harness.slurm.srun import seconds_left
from harness.spec.root import project_root

SHORTEST_MEMORY = 60
"""Seconds for which squeue must remember a job that has ended, for the executor to see how."""


def slurm(given: str | None) -> Iterator[Examined]:
    if shutil.which("srun") is None:
        yield Examined("Slurm", "none: runs are launched on this machine only")
    else:
        yield from _cluster()
    try:
        root = project_root(given)
        yield from _site(root)
    except UserError as error:
        yield Examined("site", str(error), missing=FILE.name in str(error))
        return
    yield from _shadowed(root)


def _cluster() -> Iterator[Examined]:
    config = answer("scontrol", "show", "config")
    if config is None:
        yield Examined(
            "Slurm", "its commands are here, and no controller answers them: nothing can be submitted"
        )
        return
    told = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, flags=re.MULTILINE))
    yield Examined("Slurm", f"{told.get('SLURM_VERSION', '?')}, cluster {told.get('ClusterName', '?')}")
    partitions = (answer("sinfo", "-h", "-o", "%P %D nodes, %l") or "none").splitlines()
    yield Examined("partitions", "; ".join(partitions))
    yield Examined("accounts", ", ".join(accounts()) or "none that Slurm tells of: any name will do")
    memory = re.match(r"\d+", told.get("MinJobAge", ""))
    if memory and int(memory[0]) < SHORTEST_MEMORY:
        yield Examined(
            "MinJobAge",
            f"{memory[0]} s: the executor will ask sacct, which tells of cancelled jobs as running",
        )
    if "SLURM_JOB_ID" in os.environ:
        yield _job()


def accounts() -> list[str]:
    """Those that the user may name."""
    told = answer(
        "sacctmgr", "-n", "-P", "show", "associations", f"user={getpass.getuser()}", "format=account"
    )
    return sorted(set((told or "").split()))


def _job() -> Examined:
    number = os.environ["SLURM_JOB_ID"]
    nodes = answer("squeue", "-h", "-j", number, "-o", "%D nodes: %N") or "nodes unknown"
    left = seconds_left(os.environ)
    return Examined(
        "job", f"{number} on {nodes}" + ("" if left is None else f", {left / 60:.0f} min for runs")
    )


def _site(root: Path) -> Iterator[Examined]:
    site = load_site(root)
    if site == Site():
        yield Examined(
            "site", f"{FILE} says nothing: jobs go by the machines' cards, under the account `unnamed`"
        )
        return
    said = {key: value for key, value in site.model_dump().items() if value is not None}
    yield Examined("site", ", ".join(f"{key} {value}" for key, value in said.items()))
    if site.machine and slurm_of(root, site.machine, site) is None:
        yield Examined("machine", f"the card {site.machine} knows no Slurm: its runs have one node each")
    known = accounts() if shutil.which("srun") else []
    if known and site.account and site.account not in known:
        yield Examined("account", f"{site.account} is none of {', '.join(known)}", missing=True)


def _shadowed(root: Path) -> Iterator[Examined]:
    """Snakemake looks for a profile's name in the folder it is started in, then among the user's and the site's own."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for place in (user, Path("/etc/xdg")):
        own = place / "snakemake" / "slurm"
        if own.exists() and (root / "slurm").exists():
            yield Examined("profile", f"{own} is shadowed by the project's own `slurm`: name it by its path")
