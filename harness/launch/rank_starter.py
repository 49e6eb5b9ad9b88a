"""Starts ranks as processes of this machine, or as one step of the job in which this process runs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from harness.children import die_with_parent
from harness.comm.interfaces import INTERFACES, get_own_address
from harness.comm.launchers import LAUNCHED, LAUNCHERS, STAGED
from harness.comm.rendezvous import Rendezvous
from harness.errors import RunError, UserError
from harness.files import is_own, read_tail
from harness.launch.fork_server import ForkServer, Waiting
from harness.launch.library_caches import cache_environment
from harness.launch.processes import LOG_SEARCHED, Death, Process, Watched
from harness.slurm.resources import load_site, load_slurm, plan_nodes
from harness.slurm.srun import (
    can_start_steps,
    make_python_command,
    make_staging_commands,
    make_step_command,
    parse_srun_errors,
)
from harness.spec.machine_card import Machine, Slurm, list_machines, load_start_seconds
from harness.spec.root import find_data_folder, find_results_folder

KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
"""The variables of Slurm that srun inherits. Everything else is on its command line."""
FOREIGN = (
    "SLURM_",
    "SRUN_",
    "SBATCH_",
    "MASTER_",
    *(each.rank for each in LAUNCHERS),
    "LOCAL_RANK",
    "WORLD_SIZE",
)
PYTHON = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
"""Ranks that import the same new module would each write its bytecode beside it. A file of the working directory must
not be imported in place of a module."""


class RankStarter(NamedTuple):
    """A program and the environments in which it is started, one process for each."""

    program: list[str]
    """The name of a module and its arguments."""
    environments: list[dict[str, str]]
    line: tuple[str, ...] = ()
    """The srun command, whose one process stands for all ranks. The line is empty where every process is a rank."""
    waiting: Waiting = Waiting()
    """The time limit of a start on this machine."""
    python: tuple[str, ...] = (sys.executable,)
    """The words that start Python in a rank of a step."""
    staged: Sequence[Sequence[str]] = ()
    """The commands that bring archives to the nodes before the step."""
    board: Rendezvous | None = None
    """The socket at which ranks of several machines learn where they meet."""

    @property
    def here(self) -> bool:
        return not self.line

    @property
    def command(self) -> list[str]:
        return [*self.line, *self.python, "-m", *self.program]

    @property
    def ending(self) -> signal.Signals:
        """The signal that ends the ranks. srun passes a SIGTERM on to its tasks; a killed srun would not."""
        return signal.SIGKILL if self.here else signal.SIGTERM

    def start(self, fork_server: ForkServer, log: Path, progress: Callable[[str], None]) -> Iterator[Process]:
        """Starts one process after the other, with its output in the log."""
        with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
            if self.here:
                streams = nothing.fileno(), file.fileno(), file.fileno()
                waiting = self.waiting._replace(progress=progress)
                now = {LAUNCHED: str(time.time())}
                environments = [{**environment, **now} for environment in self.environments]
                yield from fork_server.start(self.program, environments, streams, waiting)
                return
            begun, environment = time.monotonic(), dict(self.environments[0])
            for command in self.staged:
                progress(f"staging: {' '.join(command)}")
                bound = die_with_parent(os.getpid())
                if subprocess.run(
                    command, stdin=nothing, stdout=file, stderr=file, preexec_fn=bound
                ).returncode:
                    raise RunError(f"{' '.join(command)} failed: {read_tail(log, 1000)}")
            if self.staged:
                environment[STAGED] = str(time.monotonic() - begun)
            yield subprocess.Popen(
                self.command,
                env={**environment, LAUNCHED: str(time.time())},
                stdin=nothing,
                stdout=file,
                stderr=file,
                preexec_fn=die_with_parent(os.getpid(), self.ending),  # noqa: PLW1509  the launcher has no threads of its own
            )

    def attend(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """What the launcher does while ranks run: it answers those that ask where they meet."""
        if self.board:
            self.board.serve()
        meanwhile()

    def close(self) -> None:
        """Ends the board, when all ranks have ended."""
        if self.board:
            self.board.close()

    def understand(self, watched: Watched, log: Path) -> Watched:
        """The end of a step's ranks, by the messages of srun."""
        if not watched.deaths:
            return watched
        words = read_tail(log, LOG_SEARCHED)
        errors = parse_srun_errors(words)
        lost = errors.lost_node or not errors.deaths
        return watched._replace(
            deaths=[Death(rank, code, time.time()) for rank, code in errors.deaths],
            out_of_memory=errors.out_of_memory,
            lost=words.strip()[-500:] or "srun printed nothing" if lost else "",
            never_started=errors.never_started,
        )


def rank_starter(machine: Machine, ranks: int, root: Path, program: list[str]) -> RankStarter:
    """The starter of ranks that run a program: a step in a job whose machine's card knows it, else a fork server."""
    has_card = machine.name in list_machines(root)  # a spec may name a machine of another project
    slurm = load_slurm(root, machine.name, load_site(root)) if has_card else None
    if slurm is None or not can_start_steps(os.environ, slurm.scheduler):
        if slurm and ranks > slurm.ranks_per_node:
            raise UserError(
                f"ranks = {ranks}: the card {machine.name} has nodes of {slurm.ranks_per_node} ranks, and this process "
                f"is in no allocation of {slurm.scheduler}, so all ranks would start on one machine. Ask for an "
                "allocation first (docs/slurm.md), start the ranks by a launcher, or choose the card of one machine."
            )
        environments = [environment(machine, ranks, root, number) for number in range(ranks)]
        return RankStarter([*program], environments, waiting=waiting_on(root, machine.name))
    if slurm.interfaces:
        program = [
            *program,
            *("--per-node", str(slurm.ranks_per_node)),
            *("--interfaces", *slurm.interfaces),
        ]
    if slurm.container or plan_nodes(ranks, slurm).per_node > 1:
        program = ["harness.launch.node_task", *program]
    else:
        program = ["harness.launch.library_caches", *program]
    line = make_step_command(ranks, slurm)
    board = Rendezvous(_host(slurm)) if ranks > 1 else None
    shared = step_environment(machine, root, slurm, ranks) | (board.environment if board else {})
    return RankStarter(
        program,
        [shared],
        tuple(line),
        python=tuple(python_of_ranks(root, slurm)),
        staged=unstaged(ranks, slurm),
        board=board,
    )


def python_of_ranks(root: Path, slurm: Slurm) -> list[str]:
    """The words that start Python in a rank. A container shows the folders that a rank reads and writes."""
    stores = find_data_folder(root)
    named = [Path.cwd(), root, stores, stores / "store", find_results_folder(root), Path(slurm.local)]
    there = [folder for folder in named if folder.is_dir()]
    folders = {folder.absolute() for folder in there} | {folder.resolve() for folder in there}
    seen = sorted(folder for folder in folders if not folders & set(folder.parents))
    return make_python_command(slurm, seen, Path.cwd())


def unstaged(ranks: int, slurm: Slurm) -> Sequence[Sequence[str]]:
    """The commands that stage the archives of the card, unless this job did so before on as many nodes."""
    nodes = plan_nodes(ranks, slurm).nodes
    mark = Path(slurm.local) / f"harness-staged-{os.environ.get('SLURM_JOB_ID')}-{nodes}"
    return (
        [*make_staging_commands(ranks, slurm), ["touch", str(mark)]]
        if slurm.stage and not is_own(mark, S_ISREG)
        else []
    )


def _host(slurm: Slurm) -> str:
    """The address of this machine by the first interface of the card that it has, else its name."""
    there = [name for _, name in socket.if_nameindex()]
    named = next((name for name in slurm.interfaces if name in there), None)
    return get_own_address({INTERFACES[0]: named} if named else {})


def waiting_on(root: Path, machine: str) -> Waiting:
    """The time limit of a start on a machine, by its card."""
    way_out = f"; on a slow file system, raise start_seconds in config/machines/{machine}.yaml"
    return Waiting(load_start_seconds(root, machine), way_out)


def environment(machine: Machine, ranks: int, root: Path, rank: int = 0) -> dict[str, str]:
    """The environment of a rank on this machine: its place in the world, and the settings of the machine card."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    # Ranks of one machine use its loopback, whatever the machine's name resolves to.
    link = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return {**os.environ, **link, **_settings(machine, root), **place}


def step_environment(machine: Machine, root: Path, slurm: Slurm, ranks: int) -> dict[str, str]:
    """The environment that srun hands to every rank. srun adds the rank's place in the world."""
    inherited = {
        key: value for key, value in os.environ.items() if key in KEPT or not key.startswith(FOREIGN)
    }
    fabric = slurm.fabric if plan_nodes(ranks, slurm).nodes > 1 else {}
    settings = {**_settings(machine, root), **fabric, **slurm.environment}
    line = [*make_step_command(ranks, slurm), *(python_of_ranks(root, slurm) if slurm.container else [])]
    return {
        **cache_environment(slurm.local),
        **PYTHON,
        **inherited,
        **settings,
        "HARNESS_STEP": " ".join(line),
    }


def _settings(machine: Machine, root: Path) -> dict[str, str]:
    """The thread counts and allocator settings of the machine card, which are read before any Python runs."""
    threads = str(machine.threads_per_rank)
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    return {**fixed, **machine.allocator, "HARNESS_ROOT": str(root)}
