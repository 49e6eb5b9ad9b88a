"""The comparison with the authors' programs: turns of two programs, their amounts, inputs and logs."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from math import isnan
from pathlib import Path

import pytest
import torch

from benchmarks import authors
from benchmarks.authors import (
    RUNS,
    SAGE,
    check_settings,
    collect_losses,
    compare_losses,
    count_targets,
    find_epoch,
    find_our_epoch,
    make_inputs,
    make_run_spec,
    read_our_losses,
    show_amounts,
    split_command,
    take_turns,
    variable_of,
    write_inputs,
)
from benchmarks.measuring import spec_of, trainer_of
from benchmarks.watching import Amounts, WatchedProgram, can_isolate, read_session_cpu
from harness.base.errors import RunError, UserError
from harness.experiment.external.log_reader import ProgramLog, read_log
from harness.experiment.external.program import load_program
from harness.spec.root import find_root

pytestmark = pytest.mark.long

FOREVER = 10**6
TRAINING = """
import socket, sys
epochs, size = map(int, sys.argv[1:])
server = socket.create_server(("127.0.0.1", 0)) if size else None
for epoch in range(epochs):
    sum(range(300_000))
    if server:
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(bytes(size))
            client.shutdown(socket.SHUT_WR)
            peer = server.accept()[0]
            while peer.recv(size):
                pass
            peer.close()
    print(f"Epoch {epoch}: loss {epoch / 2}", flush=True)
"""
NAMESPACE = (
    "Namespace(dataset='exported', model='graphsage', dropout=0.0, lr=0.01, sampling_rate=1.0, n_epochs=180, "
    "n_partitions=2, n_hidden={hidden}, n_layers=3, norm='none', use_pp=True, eval=False)\n"
)
LINE = "Process {:03d} | Epoch 00009 | Time(s) 0.1 | Comm(s) 0.1 | Reduce(s) 0.1 | Loss {:.9f}\n"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., WatchedProgram]:
    """Return a function that starts a program that reports epochs."""
    (tmp_path / "training.py").write_text(TRAINING)

    def start(epochs: int = FOREVER, size: int = 0, private: bool = False) -> WatchedProgram:
        command = [sys.executable, "training.py", str(epochs), str(size)]
        return WatchedProgram(command, tmp_path, find_our_epoch, private=private)

    return start


def read_state(program: WatchedProgram) -> str:
    """Return the state of a process: T if it is stopped."""
    return Path(f"/proc/{program.process}/stat").read_text().rpartition(")")[2].split()[0]


def test_programs_stop_except_in_their_turns_and_end_with_the_comparison(
    start: Callable[..., WatchedProgram],
) -> None:
    with start() as ours, start() as theirs:
        ours.take_turn()
        while {read_state(ours), read_state(theirs)} != {"T"}:
            time.sleep(0.01)  # the signal is on its way
        cpu = read_session_cpu(theirs.process)
        mine, its = take_turns(ours, theirs, 2)
        assert len(mine) == len(its) == 2
        assert read_session_cpu(theirs.process) > cpu
    assert read_session_cpu(ours.process) == read_session_cpu(theirs.process) == 0


def test_a_turn_has_the_mean_amounts_of_ten_epochs(start: Callable[..., WatchedProgram]) -> None:
    done, begun = Amounts(30.0, 9.0, 5_000.0), Amounts(10.0, 4.0, 1_000.0)
    assert done.per_epoch(begun) == Amounts(2.0, 0.5, 400.0)
    with start() as program:
        before = len(program.lines)
        amounts = program.take_turn()
    assert len(program.lines) - before == 20
    assert amounts.wall > 0 and isnan(amounts.sent)


@pytest.mark.skipif(not can_isolate(), reason="needs the permission for a private network")
def test_bytes_on_the_loopback_are_those_of_the_program_alone(start: Callable[..., WatchedProgram]) -> None:
    size = 100_000
    with start(size=size, private=True) as program, start(size=size, private=True):
        sent = program.take_turn().sent
    assert size < sent < 1.2 * size


def test_a_program_that_ends_early_is_an_error_with_its_output(start: Callable[..., WatchedProgram]) -> None:
    with pytest.raises(RunError, match=r"exit code 0(.|\n)*Epoch 5"):
        start(epochs=6).__enter__()
    with start(epochs=25) as program, pytest.raises(RunError, match="before its last turn"):
        program.take_turn()


@pytest.mark.parametrize("name", RUNS)
def test_a_program_without_a_command_is_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable_of(name), raising=False)
    (text,) = authors.authors(only=(name,))
    assert variable_of(name) in str(text)


def test_commands_have_the_settings_of_the_run() -> None:
    spec = make_run_spec("plexus", "tiny-sbm", 4, 1)
    words = split_command("bash 'a b.sh' {folder} {ranks} {epochs} {x}x{y}x{z}", spec, "/tmp/x y")
    assert words == ["bash", "a b.sh", "/tmp/x y", "4", str(spec.training.epochs), "2x2x1"]


def test_the_inputs_give_our_first_loss(tmp_path: Path) -> None:
    """The verifier is a dense GraphSAGE on the written arrays."""
    spec = make_run_spec("bns-gcn", "tiny-sbm", 2, 1)
    write_inputs(tmp_path, spec)
    arrays = make_inputs(spec)
    n = len(arrays["rowptr"]) - 1
    edges = torch.zeros(n, n)
    edges[torch.arange(n).repeat_interleave(arrays["rowptr"].diff()), arrays["col"].long()] = 1
    edges.fill_diagonal_(0)
    mean = edges / edges.sum(1, keepdim=True).clamp(min=1)
    H = arrays["X"]
    for layer in range(spec.model.layers):
        H = H @ arrays[f"root{layer}"] + mean @ H @ arrays[f"neighbours{layer}"]
        H = H.relu() if layer + 1 < spec.model.layers else H
    counted = arrays["counted"].bool()
    expected = torch.nn.functional.cross_entropy(H[counted], arrays["y"][counted])
    alone = spec_of({"strategy": "serial", "dataset": "tiny-sbm", "ranks": 1, "model": SAGE})
    assert float(trainer_of(alone).epoch().loss) == pytest.approx(float(expected), rel=1e-5)
    assert sum(count_targets(tmp_path)) == int(counted.sum())
    assert json.loads((tmp_path / authors.SPEC).read_text())["ranks"] == 2


def test_losses_of_parts_are_averaged_over_all_targets() -> None:
    program = load_program(find_root(), "bns-gcn")
    run = read_log(ProgramLog(LINE.format(0, 1.0) + LINE.format(1, 3.0), "log"), program)
    assert collect_losses(run, program, [30, 10]) == {9: pytest.approx(1.5)}
    assert find_epoch(program, LINE.format(0, 1.0)) == 9
    assert find_epoch(program, LINE.format(1, 1.0)) is None
    assert find_epoch(program, "loading partitions") is None


def test_losses_are_compared_where_both_report() -> None:
    ours = read_our_losses("Epoch 0: loss 2.0\nEpoch 9: loss 1.5\nEpoch 19: loss 0.5\n")
    assert compare_losses(ours, {9: 1.25, 19: 1.0, 29: 0.5}) == (1.5, 0.25, 0.5)


def test_other_settings_than_ours_are_refused() -> None:
    program, spec = load_program(find_root(), "bns-gcn"), make_run_spec("bns-gcn", "tiny-sbm", 2, 7)

    def check(hidden: int) -> None:
        log = ProgramLog(NAMESPACE.format(hidden=hidden) + LINE.format(0, 1.0), "log")
        check_settings(log, read_log(log, program), program, spec)

    check(64)
    with pytest.raises(UserError, match=r"model\.hidden = 16.* 64"):
        check(16)


def test_ratios_are_ours_over_theirs_turn_by_turn() -> None:
    theirs = [Amounts(wall, 1.0, 2_000.0) for wall in (1.0, 2.0, 4.0, 1.0, 2.0, 4.0)]
    ours = [Amounts(wall / 2, 2.0, 1_000.0) for wall, *_ in theirs]
    cells = list(show_amounts(ours, theirs))
    assert cells[:6] == [1.0, 2.0, 1_000.0, 2_000.0, 2_000.0, 1_000.0]
    assert cells[6:] == [0.5, "0.50 to 0.50", 2.0, "2.00 to 2.00"]


def test_the_turns_of_a_strategy_are_reported(tmp_path: Path) -> None:
    spec = make_run_spec("plexus", "tiny-sbm", 2, 1)
    write_inputs(tmp_path, spec)
    command = [sys.executable, "-m", "benchmarks.reporting", str(tmp_path / authors.SPEC)]
    watch = partial(WatchedProgram, command, Path(__file__).parents[1], find_our_epoch)
    with watch(private=False) as program:
        program.take_turn()
        losses = read_our_losses(program.text)
    assert sorted(losses) == list(range(len(losses))) and len(losses) >= 30
    assert losses[9] < losses[0]
