"""Epochs that are replayed from a CUDA graph: the same training, on fake GPUs that keep the rules of a capture."""

import gc
from collections.abc import Callable
from functools import partial
from math import isnan, prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.base.device import DeviceGraph, GraphClock
from harness.base.errors import UserError
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.conformance.graphs import compare_graph
from harness.ledger import Ledger, clock_for
from harness.registry import load_strategy, registered_strategies
from harness.runtime import epoch_graph
from harness.runtime.launch.worker_pool import RankError
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec

OnGpus = Callable[..., list[Any]]
PLANTED = Path(__file__).parent / "planted.py"
EXACT = {
    "pipegcn": None,
    "sancus": None,
    "adaqp": None,
    "bns-gcn": {"p": 1.0},
}
"""The parameters with which a strategy that may send late, rounded or drawn rows has equal steps; None: with none."""
FULL_GRAPH = sorted(
    entry.name
    for entry in registered_strategies()
    if not load_strategy(entry.name).mini_batches and entry.name != "pyg"
)
CAPTURED = [name for name in FULL_GRAPH if EXACT.get(name, {}) is not None]


def case_of(name: str, ranks: int, kind: str = "gcn", **changes: Any) -> Case:
    """A training over the full graph; `changes` are keys of the spec."""
    strategy = load_strategy(name)
    params = {**(EXACT.get(name) or {}), **changes.pop("params", {})}
    model = {"kind": kind, "layers": 3, "hidden": 8, **changes.pop("model", {})}
    spec: dict[str, Any] = {
        "strategy": {"name": name, "params": params},
        "dataset": "check",
        "ranks": ranks,
        "grid": strategy.grids(ranks)[0],
        "model": model | ({"heads": 2} if kind == "gat" else {}),
        "machine": {"name": "gpus", "device": "cuda", "engine": "nccl"},
        **changes,
    }
    assert prod(spec["grid"].values()) == ranks
    return Case("graph", Spec.model_validate(spec), 211)


def most_ranks(name: str) -> int:
    return next(ranks for ranks in (4, 3, 2, 1) if load_strategy(name).grids(ranks))


def assert_same(on_gpus: OnGpus, case: Case) -> None:
    for rank, compared in enumerate(on_gpus(case.spec.ranks, compare_graph, case)):
        assert compared.same, (case.description, rank, compared)
        assert compared.unaccounted < 1e-9, "the rows of a replayed epoch add up to its length"


@pytest.mark.parametrize("name", CAPTURED)
def test_graph_changes_no_bit_and_no_word(on_gpus: OnGpus, name: str) -> None:
    assert_same(on_gpus, case_of(name, most_ranks(name)))


PARTS = {"projection": True, "norm": True, "dropout": 0.5, "residual": True}
VARIANTS: dict[str, Callable[[], Case]] = {
    "dropout, plexus": lambda: case_of("plexus", 4, model=PARTS, params={"wire": "bf16"}),
    "dropout, rows": lambda: case_of("cagnet-1d", 2, model=PARTS),
    "bf16 on the wire": lambda: case_of("compose", 4, params={"wire": "bf16"}),
    "float64": lambda: case_of("rdm", 2, precision="float64"),
    "trained features": lambda: case_of("cagnet-1d", 2, training={"features": True, "weight_decay": 0.01}),
    "recomputed layers": lambda: case_of("plexus", 2, training={"recompute": True}),
    "descent": lambda: case_of("serial", 1, training={"optimizer": "sgd"}),
    "sage": lambda: case_of("plexus", 2, "sage"),
    "gat": lambda: case_of("bns-gcn", 2, "gat"),
    "overlap": lambda: case_of("cagnet-2d", 4, params={"overlap": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_graph_changes_no_bit_of_other_models_and_settings(on_gpus: OnGpus, variant: str) -> None:
    assert_same(on_gpus, VARIANTS[variant]())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CAPTURED)
def test_graph_changes_no_bit_for_any_model(on_gpus: OnGpus, name: str, ranks: int) -> None:
    """Every kind of model, every number of ranks, with the parts of a model and with narrow messages."""
    strategy = load_strategy(name)
    if not strategy.grids(ranks):
        pytest.skip(f"{name} has no grid of {ranks} ranks")
    for kind in strategy.models:
        assert_same(on_gpus, case_of(name, ranks, kind))
        if "wire" in strategy.Params.model_fields:
            assert_same(on_gpus, case_of(name, ranks, kind, params={"wire": "bf16"}))
        if "overlap" in strategy.Params.model_fields:
            assert_same(on_gpus, case_of(name, ranks, kind, params={"overlap": True}))
        if strategy.has_model_parts:
            assert_same(on_gpus, case_of(name, ranks, kind, model={"dropout": 0.3, "norm": True}))


def trainer_of(case: Case) -> Trainer:
    strategy, device = case.strategy(), engine.select_device(Engine.NCCL, engine.rank())
    grid = Grid.build(strategy.grid, Ledger(clock_for(device)), device, wire=strategy.wire)
    return Trainer(strategy, grid, case.store())


def waits_of_a_replay(case: Case) -> list[tuple[str, str]]:
    import fake_cuda

    trainer = trainer_of(case)
    for _ in range(3):
        trainer.epoch()
    fake_cuda.waits.clear()
    trainer.epoch()
    waits = [(what, line.partition(":")[0]) for what, line in fake_cuda.waits.elements()]
    trainer.ctx.grid.drain()
    return waits


def test_replay_waits_once_and_uploads_only_what_differs(on_gpus: OnGpus) -> None:
    """Adam's numbers and the keys of two masks go up together from pinned memory, for which the host does not wait."""
    case = case_of("plexus", 2, model={"dropout": 0.5}, training={"cuda_graph": True})
    upload = ("host to device, pinned", "harness/base/device.py")
    for waits in on_gpus(2, waits_of_a_replay, case):
        assert sorted(waits) == [upload, ("synchronize device", "harness/base/device.py")]


def test_torch_without_graph_events_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_graph, "has_graph_events", lambda: False)
    with pytest.raises(UserError, match=r"torch.*training\.cuda_graph"):
        epoch_graph.require_graph_events()


def test_setting_changes_no_run_id_where_it_is_off() -> None:
    case = case_of("serial", 1)
    assert "cuda_graph" not in case.spec.model_dump()["training"]
    assert case_of("serial", 1, training={"cuda_graph": True}).spec.run_id != case.spec.run_id


# Strategies with one mistake each, which training without a graph forgives.


def planted(mistake: str, ranks: int = 2) -> Case:
    return case_of(f"{PLANTED}:{mistake}", ranks)


def test_number_that_an_epoch_reads_stops_the_capture(on_gpus: OnGpus) -> None:
    with pytest.raises(RankError, match=r"_local_scalar_dense(.|\n)*cuda_graph") as caught:
        on_gpus(2, compare_graph, planted("Item"))
    assert caught.value.kind == "UserError"


def test_number_of_the_host_that_changes_is_seen(on_gpus: OnGpus) -> None:
    for compared in on_gpus(2, compare_graph, planted("CountingHost")):
        assert not compared.same_losses and not compared.same_parameters


def test_tensor_that_is_made_anew_between_epochs_is_seen(on_gpus: OnGpus) -> None:
    with pytest.raises(RankError, match="freed after its capture"):
        on_gpus(2, compare_graph, planted("Reallocating"))


def test_stream_that_an_epoch_does_not_wait_for_is_seen(on_gpus: OnGpus) -> None:
    with pytest.raises(RankError, match="captured"):
        on_gpus(2, compare_graph, planted("OtherStream"))


# The rules of a capture, broken on purpose.


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


def capture_runs_nothing() -> list[list[float]]:
    """The numbers of an input and of a result: after the capture, and after replays with other inputs."""
    x, graph = ones(2), DeviceGraph()
    y = graph.capture(lambda: x.add_(1) * 2)
    seen = [x.tolist(), y.tolist()]
    for _ in range(2):
        graph.replay()
        seen += [x.tolist(), y.tolist()]
    x.fill_(10)
    graph.replay()
    address = y.data_ptr()
    others = [ones(2) for _ in range(8)]
    return [*seen, y.tolist(), [float(address in [each.data_ptr() for each in others])]]


def test_capture_runs_nothing_and_replays_use_the_same_memory(on_gpus: OnGpus) -> None:
    ((x, y, *replays),) = on_gpus(1, capture_runs_nothing)
    assert x == [1, 1] and all(map(isnan, y))
    assert replays == [[2, 2], [4, 4], [3, 3], [6, 6], [22, 22], [0]]


def wait_in_a_capture() -> None:
    x = ones(2)
    DeviceGraph().capture(lambda: x.sum().item())


def synchronize_in_a_capture() -> None:
    DeviceGraph().capture(torch.cuda.synchronize)


def upload_in_a_capture() -> None:
    DeviceGraph().capture(lambda: torch.ones(3).to("cuda"))


def end_with_unjoined_work() -> None:
    x, stream = ones(2), torch.cuda.Stream()

    def issue() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.add_(1)

    DeviceGraph().capture(issue)


def wait_for_earlier_work() -> None:
    stream = torch.cuda.Stream()
    event = stream.record_event()
    DeviceGraph().capture(lambda: torch.cuda.current_stream().wait_event(event))


def free_an_input() -> None:
    x, graph = ones(2), DeviceGraph()
    graph.capture(partial(torch.mul, x, 2))
    del x
    gc.collect()
    graph.replay()


def read_an_ordinary_event() -> None:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    graph = DeviceGraph()
    graph.capture(lambda: [event.record() for event in events])
    graph.replay()
    events[0].elapsed_time(events[1])


BROKEN = {
    wait_in_a_capture: "not permitted when stream is capturing",
    synchronize_in_a_capture: "not permitted when stream is capturing",
    upload_in_a_capture: "not permitted when stream is capturing",
    end_with_unjoined_work: "unjoined work",
    wait_for_earlier_work: "dependency created on uncaptured work in another stream",
    free_an_input: "memory that was freed after its capture",
    read_an_ordinary_event: "an event without a time",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_rules_of_a_capture_are_enforced(on_gpus: OnGpus, broken: Callable[[], None]) -> None:
    with pytest.raises(RankError, match=BROKEN[broken]):
        on_gpus(1, broken)


def sums_in_a_graph() -> list[list[float]]:
    """A sum over the ranks, and the time between two events of the graph, for three replays."""
    x, graph, clock, rank = ones(2), DeviceGraph(), GraphClock(), engine.rank()

    def issue() -> tuple[torch.Tensor, list[Any]]:
        marks = [clock.mark()]
        total = x.clone()
        work = dist.all_reduce(total, async_op=True)
        x.mul_(2)
        assert work is not None
        work.wait()
        return total, [*marks, clock.mark()]

    x.fill_(rank + 1)
    total, (begun, done) = graph.capture(issue)
    seen = []
    for _ in range(3):
        graph.replay()
        clock.synchronize()
        assert clock.elapsed(begun, done) > 0
        seen.append(total.tolist())
    return seen


def test_calls_to_other_ranks_are_replayed(on_gpus: OnGpus) -> None:
    assert on_gpus(2, sums_in_a_graph) == [[[3, 3], [6, 6], [12, 12]]] * 2
