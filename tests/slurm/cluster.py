"""A real Slurm on this machine, for tests: munge, a controller, and several daemons that each play a node.

    python tests/slurm/cluster.py FOLDER

lives until its standard input ends. Everything is seen from inside its own mount namespace alone: Slurm's configuration
must stand at /etc/slurm, because the executor takes SLURM_CONF away, and the machine's own stays as it is. The daemons
die with the process that made them, and the namespace with the last of them.

Nodes are n1 to n4, of four processors each; the partition ci has the first two. Each node has a mount namespace of its
own, with a disk of its own at LOCAL. It is the Slurm of Debian's packages, without accounting.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = (1 << 14) | (1 << 18)
PR_SET_PDEATHSIG = 1
PATIENCE = 30.0
NODES = 4
LOCAL = "/mnt/local"
NEEDED = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "munge")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=2
MinJobAge=300
OverTimeLimit=0
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT Nodes=n[1-{count}] MaxTime=01:00:00 DefaultTime=00:05:00 State=UP DefMemPerCPU=500
PartitionName=ci Default=YES PriorityTier=1 Nodes=n[1-2]
PartitionName=wide PriorityTier=1
PartitionName=urgent PriorityTier=9
"""
NODE = (
    "NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=4 ThreadsPerCore=1 RealMemory=6000 Gres=gpu:2 Feature=gpu State=UNKNOWN"
)


def main() -> int:
    folder, count = Path(sys.argv[1]), NODES
    if missing := [tool for tool in NEEDED if shutil.which(tool) is None]:
        print(
            f"{', '.join(missing)} not found: install slurmctld, slurmd, slurm-client and munge", flush=True
        )
        return 1
    seclude()
    configure(folder, count)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    daemons = [
        start(
            ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground"], folder
        )
    ]
    try:
        wait_for(lambda: says("munge", "-n") is not None)
        daemons.append(start(["slurmctld", "-D", "-c"], folder))
        daemons += [start(node(f"n{number}"), folder) for number in range(1, count + 1)]
        wait_for(
            lambda: (says("sinfo", "-h", "-N", "-p", "wide", "-o", "%T") or "").split() == ["idle"] * count
        )
        print(f"up {os.getpid()}", flush=True)
        sys.stdin.read()
    except TimeoutError:
        for log in sorted(folder.glob("*.log")):
            print(f"{log.name}: {log.read_text(errors='replace')[-2000:]}", flush=True)
        return 1
    finally:
        empty()
        says("scontrol", "shutdown")  # a controller that a test started again is no child of this process
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()
        # A daemon that a test started again may have heard no shutdown.
        for file in folder.glob("slurm*.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
    return 0


def node(name: str) -> list[str]:
    """The command that plays a node."""
    disk = f"mkdir -p {LOCAL} && mount -t tmpfs tmpfs {LOCAL} && exec slurmd -D -N {name}"
    return ["unshare", "--mount", "sh", "-c", disk]


def empty() -> None:
    """Ends all jobs, and waits until those who kept them have gone."""
    says("scancel", "--user=root")
    deadline = time.monotonic() + PATIENCE
    while says("squeue", "-h") and time.monotonic() < deadline:
        time.sleep(0.1)


def seclude() -> None:
    """A mount namespace of our own, in which Slurm's and munge's places are empty."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace can be made here: it takes root")
    for place in ("/etc/slurm", "/run/munge", "/mnt"):
        Path(place).mkdir(parents=True, exist_ok=True)
        if libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, None):
            raise OSError(ctypes.get_errno(), f"{place} cannot be covered")


def configure(folder: Path, count: int) -> None:
    controller, *ports = free_ports(count + 1)
    nodes = "\n".join(NODE.format(number=number, port=port) for number, port in enumerate(ports, 1))
    text = CONFIGURATION.format(folder=folder, controller=controller, nodes=nodes, count=count)
    Path("/etc/slurm/slurm.conf").write_text(text)
    devices = [folder / f"gpu{number}" for number in range(2)]
    for device in devices:
        device.touch()
    Path("/etc/slurm/gres.conf").write_text(f"NodeName=n[1-{count}] Name=gpu File={folder}/gpu[0-1]\n")
    (folder / "state").mkdir(exist_ok=True)
    Path("/run/munge").chmod(0o755)
    shutil.chown("/run/munge", "munge", "munge")


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections."""
    sockets = []
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        link = socket.socket()
        try:
            link.bind(("127.0.0.1", port))
        except OSError:
            link.close()
            continue
        sockets.append(link)
        if len(sockets) == count:
            break
    ports = [link.getsockname()[1] for link in sockets]
    for link in sockets:
        link.close()
    return ports


def start(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    log = (folder / f"{command[0]}.out").open("ab")
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        preexec_fn=_die_with_the_parent,  # noqa: PLW1509  there are no threads
    )


def _die_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def says(*command: str) -> str | None:
    """What a command prints, if it ends well and soon."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
