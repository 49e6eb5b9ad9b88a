"""The rendezvous through which ranks on several machines learn the address of rank 0. Does not import torch.

The launcher listens on a socket: rank 0 publishes its address there, and every other rank asks once. If no rank can
connect, the address is in a file in a folder that all machines share.
"""

import os
import random
import resource
import secrets
import selectors
import socket
import time
from contextlib import suppress
from datetime import timedelta
from math import inf
from pathlib import Path

RENDEZVOUS = "HARNESS_BOARD"
"""The variable with the name, the host and the port of the launcher's rendezvous."""
BACKLOG = 4096
KEPT_FREE = 64
"""The number of file descriptors that the rendezvous leaves to its process."""
CONNECT_TIMEOUT = 10.0
"""The seconds after which a rank that cannot connect to the rendezvous reads the file instead."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
SILENCE_TIMEOUT = 10.0
"""The seconds that a client has to send the rendezvous's name. Ranks send it at once."""
ROUNDS = BACKLOG
"""The maximum number of rounds of one call of `serve`."""


class Rendezvous:
    """The socket of a launcher. `serve` is called often and does not block; messages are single lines.

    It listens on all addresses, because it is not known which of them the nodes can reach. A client must send the
    rendezvous's name, a secret in the environment of the ranks; other clients are dropped. Silent clients are dropped
    after a while, or at once if descriptors run out.
    """

    def __init__(self, host: str) -> None:
        self.name, self._address = secrets.token_hex(16), ""
        self._selector, self._asking = selectors.DefaultSelector(), list[socket.socket]()
        self._silent = dict[socket.socket, float]()
        self._link = socket.create_server(("", 0), backlog=BACKLOG)
        self._link.setblocking(False)
        self._selector.register(self._link, selectors.EVENT_READ)
        self.environment = {RENDEZVOUS: f"{self.name} {host} {self._link.getsockname()[1]}"}
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = most - KEPT_FREE

    def serve(self) -> None:
        """Read the received messages, and answer every rank once the address of rank 0 is known.

        If descriptors run short, ranks are answered before that, and ask again. Clients that keep connecting are left
        to the next call.
        """
        for _ in range(ROUNDS):
            ready = self._selector.select(0)
            moved = [
                self._accept() if key.fileobj is self._link else self._read_message(key.fileobj)  # type: ignore[arg-type]
                for key, _ in ready
            ]
            if self._address or len(self._asking) > self._most // 2:
                while self._asking:
                    self._answer(self._asking.pop())
            if not any(moved):
                break
        self._drop_silent(before=time.monotonic() - SILENCE_TIMEOUT)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for client in self._asking:
            client.close()
        self._selector.close()

    def _accept(self) -> bool:
        """Accept a client. Returns False if no client is waiting or no file descriptor is free."""
        if len(self._asking) + len(self._silent) >= self._most:
            self._drop_silent(before=inf, most=1)
        try:
            client, _ = self._link.accept()
        except OSError:
            return self._drop_silent(before=inf, most=1)
        client.setblocking(False)
        self._selector.register(client, selectors.EVENT_READ)
        self._silent[client] = time.monotonic()
        return True

    def _drop_silent(self, before: float, most: int | None = None) -> bool:
        """Drop the clients that connected before a time and have sent nothing yet, the earliest first."""
        late = [client for client, came in self._silent.items() if came < before][:most]
        for client in late:
            self._unregister(client)
            client.close()
        return bool(late)

    def _unregister(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        del self._silent[client]

    def _read_message(self, client: socket.socket) -> bool:
        """Read a message: `NAME`, or `NAME HOST PORT` from rank 0. A client with another name is not of this run."""
        if client not in self._silent:
            return False  # dropped in this round for lack of descriptors
        self._unregister(client)
        try:
            name, *address = client.recv(1024).decode(errors="replace").split() or [""]
        except OSError:
            name, address = "", []
        if not secrets.compare_digest(name.encode(), self.name.encode()) or len(address) not in (0, 2):
            client.close()
            return True
        self._address = " ".join(address) or self._address
        self._asking.append(client)
        return True

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.sendall(f"{self.name} {self._address}\n".encode())


def publish_address(file: Path, host: str, port: int) -> None:
    """Publish the address at which rank 0 listens, at the rendezvous and in a file that is written atomically."""
    posted = ask_rendezvous(f" {host} {port}", CONNECT_TIMEOUT) is not None
    try:
        partial = file.with_suffix(".part")
        partial.write_text(f"{host} {port}", encoding="utf-8")
        partial.replace(file)
    except OSError:
        if not posted:
            raise


def find_address(file: Path, timeout: timedelta) -> tuple[str, int]:
    """Return the host and the port of rank 0, from the rendezvous, or from the file if it cannot be reached."""
    seconds = timeout.total_seconds()
    host, port = (ask_rendezvous("", seconds) or _read_address(file, seconds)).split()
    return host, int(port)


def ask_rendezvous(published: str, seconds: float) -> str | None:
    """Ask the rendezvous for the address of rank 0. Returns None if no rendezvous exists or it cannot be reached.

    Rank 0 sends its own address, `published`, which is empty on all other ranks.
    """
    if RENDEZVOUS not in os.environ:
        return None
    name, host, port = os.environ[RENDEZVOUS].split()
    hosts = [host, *filter(None, [os.environ.get("SLURM_SRUN_COMM_HOST")])]
    start, pause, reached = time.monotonic(), FIRST_PAUSE, False
    while (passed := time.monotonic() - start) < seconds and (reached or passed < CONNECT_TIMEOUT):
        for each in hosts:
            with suppress(OSError), socket.create_connection((each, int(port)), CONNECT_TIMEOUT / 2) as link:
                link.sendall(f"{name}{published}\n".encode())
                link.settimeout(max(seconds - passed, 1.0))
                named, *address = link.recv(1024).decode(errors="replace").split() or [""]
                if named == name and address:
                    return " ".join(address)
                reached = reached or named == name
        time.sleep(pause * random.random())
        pause = min(2 * pause, LONGEST_PAUSE)
    return None


def _read_address(file: Path, seconds: float) -> str:
    """Read the address that rank 0 wrote. Network file systems show a new file only after its folder is listed."""
    start, pause = time.monotonic(), FIRST_PAUSE
    while file.name not in os.listdir(file.parent):  # noqa: PTH208
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"rank 0 wrote no address to {file} within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return file.read_text(encoding="utf-8")
