"""Runs on ranks that another launcher started, each with the same command of the harness.

Any process on the machine or the network may write to such a launcher's store, so nothing in the store may be run: an
order is only the name of a folder, which a rank looks for among its own results and accepts only from its own user.
"""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from harness.base.errors import RunError, UserError
from harness.base.files import SCRATCH_NAMES, is_own
from harness.base.validation import format_value
from harness.comm.hosts import is_single_machine
from harness.comm.launchers import RankPlace, read_place
from harness.runtime.fault import read_faults
from harness.runtime.launch.processes import RunEnd, is_infrastructure_failure
from harness.runtime.launch.time_limits import LIMITS, TimeLimits
from harness.spec.spec import Spec

REFUSED_ORDER = "The order of rank 0, from a store to which every process of the network can write,"
TAMPERED = "If this repeats, another user may be writing to the store: docs/how-to/security.md."


@cache
def find_joined_world() -> "JoinedWorld | None":
    """Return the world in which another launcher started this process as a rank, or None."""
    at = read_place(os.environ)
    return JoinedWorld(at) if at.world > 1 else None


class JoinedWorld:
    """A world whose rank 0 leads, and whose other ranks follow. Each run is an order: a key of their common store."""

    def __init__(self, at: RankPlace, limits: TimeLimits = LIMITS) -> None:
        from harness.comm.world_store import open_world_store

        if is_single_machine(os.environ):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the machine's name resolves to
        self.at, self._limits, self._orders = at, limits, count()
        self._store = open_world_store(at)

    def lead_run(self, spec: Spec, root: Path, runs: Path, scratch: Path) -> RunEnd:
        """Run the spec in the scratch folder on all ranks."""
        if spec.ranks != self.at.world:
            raise UserError(
                f"ranks = {spec.ranks}: the launcher started {self.at.world}. Ask for equally many by --ranks."
            )
        order = self._next_order()
        self._store.set(order, scratch.name)
        self._run_order(order, root, scratch, runs)
        ended = any(fault["type"] in ("SystemExit", "KeyboardInterrupt") for fault in read_faults(scratch))
        if not (scratch / "done").exists() and (ended or is_infrastructure_failure(RunEnd(), scratch)):
            raise RunError(
                f"{spec.label} has no record: its launcher ended the ranks, and its output says why."
            )
        return RunEnd()

    def follow_runs(self, root: Path, runs: Path) -> None:
        """Run each order of rank 0 until it dismisses this rank, in the folders that this rank's command names."""
        order = self._next_order()
        while name := self._wait_for_order(order):
            following = self._next_order()
            with suppress(FileNotFoundError):  # rank 0 has ended the run and removed its folder
                scratch = self._find_scratch(runs, name, following)
                self._run_order(order, root, scratch, runs)
            order = following

    def dismiss_followers(self) -> None:
        """Let the other ranks end."""
        self._store.set(self._next_order(), "")

    def _next_order(self) -> str:
        """Return the key of the next order."""
        return f"order {next(self._orders)}"

    def _wait_for_order(self, order: str) -> str:
        """Return the text of an order once rank 0 has given it: empty after the last run."""
        self._store.wait([order], timedelta(days=7))
        text: str = self._store.get(order).decode(errors="replace")
        return text

    def _find_scratch(self, runs: Path, name: str, following: str) -> Path:
        """Return the scratch folder of an order: a folder of this user among the results of this rank's command.

        Raises FileNotFoundError if rank 0 has removed the folder and given the following order.
        """
        if not SCRATCH_NAMES.fullmatch(name):
            raise UserError(
                f"{REFUSED_ORDER} names {format_value(name)}, which is not a scratch folder. {TAMPERED}"
            )
        scratch = runs.absolute().parent / name
        deadline = time.monotonic() + self._limits.folder_visible
        while not is_own(scratch, S_ISDIR) or not is_own(scratch / "spec.json", S_ISREG):
            if self._store.check([following]):
                raise FileNotFoundError(scratch)
            if time.monotonic() > deadline:
                raise UserError(
                    f"{REFUSED_ORDER} names the folder {scratch}, which is not there or does not belong to you. Start "
                    "all ranks as one user, by the same command, with the same HARNESS_* variables, in a file system "
                    f"that all machines share. {TAMPERED}"
                )
            # Network file systems show a new folder only to processes that list its parent.
            any(scratch.parent.glob("launch-*"))
            time.sleep(self._limits.poll)
        return scratch

    def _run_order(self, order: str, root: Path, scratch: Path, runs: Path) -> None:
        """Run an order as this rank."""
        import torch
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        from harness.comm.world_store import open_file_store
        from harness.runtime.rank import run_and_report_faults

        machine = json.loads((scratch / "spec.json").read_text(encoding="utf-8"))["machine"]
        torch.set_num_threads(machine["threads_per_rank"])
        here = is_single_machine(os.environ)
        store = (
            open_file_store(scratch / "meeting", self.at.world) if here else PrefixStore(order, self._store)
        )
        run_and_report_faults(self.at, root, scratch, runs, store)
