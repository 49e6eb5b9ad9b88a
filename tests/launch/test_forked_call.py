"""Functions that are called in a process of the fork server: their results, their errors, and a process that dies."""

import os
from pathlib import Path

import pytest

from harness.base.errors import RunError, UserError
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.launch import prepare_fork_server
from harness.spec.machine_card import load_machine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(fork_server: ForkServer) -> ForkServer:
    assert prepare_fork_server(fork_server, load_machine(ROOT, "local"), ROOT)
    return fork_server


def test_result_comes_from_another_process(server: ForkServer) -> None:
    assert server.call("operator:add", 1, 2) == 3
    assert server.call("os:getpid") != os.getpid()


def test_error_of_the_function_is_raised_with_its_traceback(server: ForkServer) -> None:
    with pytest.raises(UserError, match="Did you mean local"):
        server.call("harness.spec.machine_card:load_machine", ROOT, "loca")
    with pytest.raises(ZeroDivisionError) as error:
        server.call("fractions:Fraction", 1, 0)
    assert "fractions.py" in "\n".join(error.value.__notes__)
    with pytest.raises(TypeError, match="pickle"):
        server.call("threading:Lock")


def test_death_of_the_process_is_reported_and_the_server_goes_on(server: ForkServer) -> None:
    with pytest.raises(RunError, match=r"os:abort was not completed: its process killed by SIGABRT"):
        server.call("os:abort")
    assert server.call("operator:add", 1, 1) == 2
