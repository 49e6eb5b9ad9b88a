"""Starts ranks as processes on this machine, or as one step of the job in which this process runs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import IO, NamedTuple

from harness.base.children import die_with_parent
from harness.base.errors import RunError, UserError
from harness.base.files import is_own, read_tail
from harness.comm.interfaces import INTERFACES, get_own_address
from harness.comm.launchers import LAUNCHED, LAUNCHERS, STAGED
from harness.comm.rendezvous import Rendezvous
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.library_caches import make_cache_environment
from harness.runtime.launch.processes import LOG_BYTES_SEARCHED, Death, Process, RunEnd
from harness.runtime.launch.time_limits import START_LIMITS, StartLimits
from harness.runtime.slurm.resources import load_site, load_slurm, plan_nodes
from harness.runtime.slurm.srun import (
    can_start_steps,
    make_python_command,
    make_staging_commands,
    make_step_command,
    parse_srun_errors,
)
from harness.spec.machine_card import Machine, Slurm, list_machines, load_start_seconds
from harness.spec.root import find_data_folder, find_results_folder

INHERITED = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
"""The variables of Slurm that srun inherits. All other settings are on its command line."""
FOREIGN_PREFIXES = (
    "SLURM_",
    "SRUN_",
    "SBATCH_",
    "MASTER_",
    *(each.rank for each in LAUNCHERS),
    "LOCAL_RANK",
    "WORLD_SIZE",
)
"""The prefixes of variables by which a launcher gives this process its place; ranks do not inherit them."""
PYTHON_SETTINGS = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
"""Keep all ranks from writing bytecode at once, and from importing a file of the working directory as a module."""


class RankStarter(NamedTuple):
    """Starts a program as ranks: one process per environment, or one srun for all ranks."""

    program: list[str]
    """The name of a module and its arguments."""
    environments: list[dict[str, str]]
    srun_command: tuple[str, ...] = ()
    """The srun command that starts all ranks. Empty if the ranks are processes on this machine."""
    start_limits: StartLimits = START_LIMITS
    """The time limits of a start on this machine."""
    python_command: tuple[str, ...] = (sys.executable,)
    """The words that start Python in a rank of a step."""
    staging_commands: Sequence[Sequence[str]] = ()
    """The commands that copy archives to the nodes before the step."""
    rendezvous: Rendezvous | None = None
    """The socket at which ranks on several machines learn the address of rank 0."""

    @property
    def is_local(self) -> bool:
        return not self.srun_command

    @property
    def command(self) -> list[str]:
        return [*self.srun_command, *self.python_command, "-m", *self.program]

    @property
    def ending_signal(self) -> signal.Signals:
        """The signal that ends the ranks. srun passes a SIGTERM on to its tasks; a killed srun would not."""
        return signal.SIGKILL if self.is_local else signal.SIGTERM

    def start(self, fork_server: ForkServer, log: Path, progress: Callable[[str], None]) -> Iterator[Process]:
        """Start one process after the other, with its output in the log."""
        with log.open("ab") as file, Path(os.devnull).open("rb") as null:
            if self.is_local:
                streams = null.fileno(), file.fileno(), file.fileno()
                limits = self.start_limits._replace(progress=progress)
                launched = {LAUNCHED: str(time.time())}
                environments = [{**environment, **launched} for environment in self.environments]
                yield from fork_server.start(self.program, environments, streams, limits)
                return
            environment = self.environments[0] | self._run_staging(null, file, log, progress)
            yield subprocess.Popen(
                self.command,
                env={**environment, LAUNCHED: str(time.time())},
                stdin=null,
                stdout=file,
                stderr=file,
                preexec_fn=die_with_parent(os.getpid(), self.ending_signal),  # noqa: PLW1509  the launcher has one thread
            )

    def _run_staging(
        self, null: IO[bytes], file: IO[bytes], log: Path, progress: Callable[[str], None]
    ) -> dict[str, str]:
        """Run the staging commands, and return the variable with the seconds that they took."""
        start = time.monotonic()
        for command in self.staging_commands:
            progress(f"staging: {' '.join(command)}")
            done = subprocess.run(
                command, stdin=null, stdout=file, stderr=file, preexec_fn=die_with_parent(os.getpid())
            )
            if done.returncode:
                raise RunError(f"{' '.join(command)} failed: {read_tail(log, 1000)}")
        return {STAGED: str(time.monotonic() - start)} if self.staging_commands else {}

    def serve_rendezvous(self) -> None:
        """Answer the ranks that ask for the address of rank 0. Called often while ranks run."""
        if self.rendezvous:
            self.rendezvous.serve()

    def close(self) -> None:
        """Close the rendezvous, after all ranks have ended."""
        if self.rendezvous:
            self.rendezvous.close()

    def read_srun_errors(self, end: RunEnd, log: Path) -> RunEnd:
        """Return how the ranks of a step ended, with the deaths and the lost nodes that srun reported in the log."""
        if not end.deaths:
            return end
        text = read_tail(log, LOG_BYTES_SEARCHED)
        errors = parse_srun_errors(text)
        lost = errors.lost_node or not errors.deaths
        return end._replace(
            deaths=[Death(rank, code, time.time()) for rank, code in errors.deaths],
            out_of_memory=errors.out_of_memory,
            lost=text.strip()[-500:] or "srun printed nothing" if lost else "",
            never_started=errors.never_started,
        )


def make_rank_starter(machine: Machine, ranks: int, root: Path, program: list[str]) -> RankStarter:
    """Return the starter of a program's ranks: a step if this process is in a job of the machine's scheduler.

    Otherwise the ranks are forked on this machine.
    """
    has_card = machine.name in list_machines(root)  # a spec may name a machine of another project
    slurm = load_slurm(root, machine.name, load_site(root)) if has_card else None
    if slurm and can_start_steps(os.environ, slurm.scheduler):
        return _make_step_starter(machine, ranks, root, program, slurm)
    if slurm and ranks > slurm.ranks_per_node:
        raise UserError(
            f"ranks = {ranks}: the card {machine.name} has nodes of {slurm.ranks_per_node} ranks, and this process "
            f"is in no allocation of {slurm.scheduler}, so all ranks would start on one machine. Ask for an "
            "allocation first (docs/how-to/slurm.md), start the ranks by a launcher, or choose the card of one machine."
        )
    environments = [make_rank_environment(machine, ranks, root, rank) for rank in range(ranks)]
    return RankStarter([*program], environments, start_limits=load_start_limits(root, machine.name))


def _make_step_starter(
    machine: Machine, ranks: int, root: Path, program: list[str], slurm: Slurm
) -> RankStarter:
    """Return the starter of a program's ranks as one step of this job."""
    if slurm.interfaces:
        per_node = str(slurm.ranks_per_node)
        program = [*program, "--per-node", per_node, "--interfaces", *slurm.interfaces]
    plan = plan_nodes(ranks, slurm)
    forks_on_node = slurm.container or plan.per_node > 1
    task = "harness.runtime.launch.node_task" if forks_on_node else "harness.runtime.launch.library_caches"
    srun_command, python_command = make_step_command(ranks, slurm), make_rank_python_command(root, slurm)
    rendezvous = Rendezvous(_find_own_address(slurm)) if ranks > 1 else None
    environment = {
        **make_step_environment(machine, root, slurm, across_nodes=plan.nodes > 1),
        "HARNESS_STEP": " ".join([*srun_command, *(python_command if slurm.container else [])]),
        **(rendezvous.environment if rendezvous else {}),
    }
    return RankStarter(
        [task, *program],
        [environment],
        tuple(srun_command),
        python_command=tuple(python_command),
        staging_commands=plan_staging(ranks, slurm),
        rendezvous=rendezvous,
    )


def make_rank_python_command(root: Path, slurm: Slurm) -> list[str]:
    """Return the words that start Python in a rank. A container shows the folders that a rank reads and writes."""
    data = find_data_folder(root)
    folders = [Path.cwd(), root, data, data / "store", find_results_folder(root), Path(slurm.local)]
    existing = [folder for folder in folders if folder.is_dir()]
    paths = {folder.absolute() for folder in existing} | {folder.resolve() for folder in existing}
    outermost = sorted(path for path in paths if not paths & set(path.parents))
    return make_python_command(slurm, outermost, Path.cwd())


def plan_staging(ranks: int, slurm: Slurm) -> Sequence[Sequence[str]]:
    """Return the commands that stage the card's archives, or none if this job has staged them on as many nodes."""
    nodes = plan_nodes(ranks, slurm).nodes
    mark = Path(slurm.local) / f"harness-staged-{os.environ.get('SLURM_JOB_ID')}-{nodes}"
    if not slurm.stage or is_own(mark, S_ISREG):
        return []
    return [*make_staging_commands(ranks, slurm), ["touch", str(mark)]]


def _find_own_address(slurm: Slurm) -> str:
    """Return this machine's address on the first of the card's interfaces that it has, or else its name."""
    existing = {name for _, name in socket.if_nameindex()}
    interface = next((name for name in slurm.interfaces if name in existing), None)
    return get_own_address({INTERFACES[0]: interface} if interface else {})


def load_start_limits(root: Path, machine: str) -> StartLimits:
    """Return the limits of a start on a machine, by its card."""
    way_out = f"; on a slow file system, raise start_seconds in config/machines/{machine}.yaml"
    return StartLimits(load_start_seconds(root, machine), way_out)


def make_rank_environment(machine: Machine, ranks: int, root: Path, rank: int = 0) -> dict[str, str]:
    """Return the environment of a rank on this machine: its place in the world, and the settings of the card."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    # Ranks on one machine use the loopback, whatever the machine's name resolves to.
    link = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return {**os.environ, **link, **make_rank_settings(machine, root), **place}


def make_step_environment(
    machine: Machine, root: Path, slurm: Slurm, *, across_nodes: bool
) -> dict[str, str]:
    """Return the environment that srun passes to every rank. srun adds the rank's place in the world."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key in INHERITED or not key.startswith(FOREIGN_PREFIXES)
    }
    return {
        **make_cache_environment(slurm.local),
        **PYTHON_SETTINGS,
        **inherited,
        **make_rank_settings(machine, root),
        **(slurm.fabric if across_nodes else {}),
        **slurm.environment,
    }


def make_rank_settings(machine: Machine, root: Path) -> dict[str, str]:
    """Return the thread counts and allocator settings of the card, which are read before Python starts."""
    threads = str(machine.threads_per_rank)
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    return {**counts, **machine.allocator, "HARNESS_ROOT": str(root)}
