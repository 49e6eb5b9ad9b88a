"""An emulated cluster: network namespaces as hosts, a bridge as the switch, a shaped link from each host to it.

Bandwidth is real: the kernel drops packets beyond it. Latency is the machine's own. Send buffers are small, as on
networks that bypass the kernel: megabytes in a buffer would share the link with the next message, to another host,
and delay the rank that waits for the first message alone. Everything is made inside namespaces whose names begin with
PREFIX; the machine's own interfaces, addresses and routes are never touched.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

PREFIX = "testbed-"
SWITCH = f"{PREFIX}switch"
NETWORK = "10.77"
PORT = 29500
POLL_SECONDS = 0.05
RATE = re.compile(r"[1-9][0-9]*(kbit|mbit|gbit)")
UNSENT = "4096 65536 262144"
"""Bytes of a connection's send buffer: least, first and most."""
FRAME = 32000
"""Bytes of a frame. Network cards cut messages into frames by themselves; here the cores pay some 20 microseconds for
each: with frames of 1500 bytes, two cores carry no more than 140 Mbit/s on each of eight links
(benchmarks/collectives.py).
"""
BURST = {"kbit": "32kb", "mbit": "32kb", "gbit": "4mb"}
"""Bytes that a link lets through at once after a pause. With 256 KB, messages of that size cost next to nothing."""


class TestbedError(Exception):
    """The reason for people why this machine cannot have a cluster."""


def check_machine() -> None:
    """Refuses without root and without the tools."""
    if os.geteuid() != 0:
        raise TestbedError(
            "network namespaces and traffic shaping need root: run this as root, or under `sudo`."
        )
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise TestbedError(f"{' and '.join(missing)} not found: install iproute2.")


def up(hosts: int, rate: str) -> None:
    """Makes so many hosts, every link limited to `rate` in both directions, after taking down earlier hosts."""
    if not 1 <= hosts <= 250:
        raise TestbedError(f"hosts = {hosts}: accepted are 1 to 250.")
    if not RATE.fullmatch(rate):
        raise TestbedError(
            f"rate = {rate!r}: accepted are a whole number and kbit, mbit or gbit, as 200mbit."
        )
    check_machine()
    down()
    try:
        _call("ip", "netns", "add", SWITCH)
        _inside(SWITCH, "ip", "link", "add", "bridge0", "type", "bridge")
        _inside(SWITCH, "ip", "link", "set", "bridge0", "mtu", str(FRAME), "up")
        for number in range(1, hosts + 1):
            _add_host(number, rate)
    except TestbedError:
        down()
        raise


def down() -> None:
    """Ends all processes on the hosts, and takes away hosts and links."""
    check_machine()
    for namespace in namespaces():
        for pid in _output("ip", "netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _call("ip", "netns", "delete", namespace)


def namespaces() -> list[str]:
    """The hosts that are up, and the switch."""
    names = [line.split()[0] for line in _output("ip", "netns", "list").splitlines() if line.strip()]
    return sorted((name for name in names if name.startswith(PREFIX)), key=lambda name: (len(name), name))


def hosts_up() -> int:
    return len([name for name in namespaces() if name != SWITCH])


def run(command: Sequence[str], ranks_per_host: int, environment: Mapping[str, str]) -> int:
    """Runs the command once for each rank, host by host, with the variables that torchrun would set.

    Returns 0 if all ranks return 0, else the first other code; all other ranks are then ended.
    """
    hosts = hosts_up()
    if hosts == 0:
        raise TestbedError("no host is up: make hosts by `up`.")
    world = hosts * ranks_per_host
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", _host(1 + rank // ranks_per_host), *command],
            env={**environment, **_place(rank, world, ranks_per_host)},
        )
        for rank in range(world)
    ]
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            if failed := [code for code in codes if code]:
                return failed[0]
            if None not in codes:
                return 0
            time.sleep(POLL_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _place(rank: int, world: int, ranks_per_host: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % ranks_per_host),
        "MASTER_ADDR": _address(1),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": "link0",
    }


def _add_host(number: int, rate: str) -> None:
    host, port = _host(number), f"port{number}"
    _call("ip", "netns", "add", host)
    _inside(host, "ip", "link", "set", "lo", "up")
    _call("ip", "link", "add", "link0", "netns", host, "type", "veth", "peer", "name", port, "netns", SWITCH)
    _inside(SWITCH, "ip", "link", "set", port, "master", "bridge0", "mtu", str(FRAME), "up")
    _inside(host, "ip", "addr", "add", f"{_address(number)}/24", "dev", "link0")
    _inside(host, "ip", "link", "set", "link0", "mtu", str(FRAME), "up")
    _inside(host, "sh", "-c", f"echo {UNSENT} > /proc/sys/net/ipv4/tcp_wmem")
    burst = BURST[rate[-4:]]
    for namespace, device in ((host, "link0"), (SWITCH, port)):
        shaping = ("root", "tbf", "rate", rate, "burst", burst, "latency", "100ms")
        _inside(namespace, "tc", "qdisc", "add", "dev", device, *shaping)


def _host(number: int) -> str:
    return f"{PREFIX}host{number}"


def _address(number: int) -> str:
    return f"{NETWORK}.0.{number}"


def _inside(namespace: str, *command: str) -> None:
    _call("ip", "netns", "exec", namespace, *command)


def _call(*command: str) -> None:
    _output(*command)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
