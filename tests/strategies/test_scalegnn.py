"""ScaleGNN samples without messages, and each optimisation changes only what it should."""

from collections import Counter, defaultdict
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.conformance.case_list import HERE
from harness.ledger import MOVING, SAMPLING, Amounts, AxisName, Key, Ledger, Op, TensorName
from harness.prediction.replay import replay
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec
from harness.strategies.scalegnn.scalegnn import ScaleGNN
from harness.strategy import BlockCounts, Facts, ShapeBlocks, Words
from tests.compiler import needs_compiler

D, X, Y, Z = AxisName.D, AxisName.X, AxisName.Y, AxisName.Z
WHOLE = {"layers": 3, "hidden": 12, "projection": True, "norm": True, "dropout": 0.3, "residual": True}
SUMS_OF_PRODUCTS = {TensorName.T, TensorName.Z, TensorName.DT, TensorName.DH, TensorName.DW, TensorName.H}


def spec_of(grid: str, model: dict[str, Any] | None = None, **params: Any) -> Spec:
    sizes = dict(zip((D, X, Y, Z), map(int, grid.split("x")), strict=True))
    return Spec.model_validate(
        {
            "strategy": {"name": "scalegnn", "params": params},
            "dataset": "check",
            "ranks": prod(sizes.values()),
            "grid": sizes,
            "model": WHOLE | (model or {}),
            "training": {"epochs": 4, "batch": 60, "lr": 0.02},
            "precision": "float32",
            "machine": HERE,
        }
    )


def train(spec: Spec, epochs: int) -> tuple[list[float], list[Tensor], dict[Key, Amounts]]:
    """Return this rank's losses, weights, and ledger of the first epoch."""
    case = Case("test", spec, vertices=211)
    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger(), wire=strategy.wire), case.store())
    done = [trainer.epoch() for _ in range(epochs)]
    return (
        [epoch.loss.item() for epoch in done],
        [weight.detach() for weight in trainer.weights],
        done[0].entries,
    )


@pytest.mark.parametrize("prefetch", [False, True])
def test_sampling_sends_no_messages(prefetch: bool, ranks) -> None:
    """SGN-008, on every rank; the ledger has the time of sampling."""
    for _, _, entries in ranks(4, train, spec_of("1x2x2x1", prefetch=prefetch), 1):
        sampling = [(key, amounts) for key, amounts in entries.items() if key.phase in SAMPLING]
        assert sum(amounts.seconds for _, amounts in sampling) > 0
        assert all(key.op not in MOVING for key, _ in sampling)
        assert all(amounts.elements_payload == amounts.bytes == 0 for _, amounts in sampling)


def test_prefetching_gives_bitwise_the_same_results(ranks) -> None:
    """Prefetching continues across epochs."""
    once, ahead = (ranks(4, train, spec_of("2x1x2x1", prefetch=prefetch), 3) for prefetch in (False, True))
    for (losses, weights, _), (others, theirs, _) in zip(once, ahead, strict=True):
        assert losses == others
        assert all(map(torch.equal, weights, theirs))


def test_bf16_halves_only_the_bytes_of_partial_products_and_residuals(ranks) -> None:
    """SGN-011: sums of squares, of the loss, of scales and over groups are sent in full precision."""
    full, half = (ranks(8, train, spec_of("2x2x2x1", wire=wire), 1) for wire in ("full", "bf16"))
    for (_, _, before), (_, _, after) in zip(full, half, strict=True):
        narrower = Counter[bool]()
        for key in before:
            if key.op not in MOVING:
                continue
            product = key.tensor in SUMS_OF_PRODUCTS and key.axis != D
            assert after[key].elements_payload == before[key].elements_payload
            assert after[key].bytes * (2 if product else 1) == before[key].bytes, key
            narrower[product] += 1
        assert narrower[True] >= 10 and narrower[False] >= 5


def test_overlap_changes_neither_words_nor_results(ranks) -> None:
    apart, over = (ranks(4, train, spec_of("2x1x1x2", overlap=overlap), 3) for overlap in (False, True))
    for (losses, weights, before), (others, theirs, after) in zip(apart, over, strict=True):
        assert losses == others
        assert all(map(torch.equal, weights, theirs))
        sent = [defaultdict(float) for _ in range(2)]
        for found, entries in zip(sent, (before, after), strict=True):
            for key, amounts in entries.items():
                if key.op in MOVING:
                    found[key.layer, key.op, key.axis, key.tensor] += amounts.elements_payload
        assert sent[0] == sent[1]
        gradients = [
            amounts for key, amounts in after.items() if key.tensor is TensorName.DW and key.op in MOVING
        ]
        assert all(amounts.in_flight_seconds > 0 for amounts in gradients)


@pytest.mark.long
@needs_compiler
def test_fused_kernel_trains_like_separate_kernels(ranks) -> None:
    parts, fused = (ranks(2, train, spec_of("1x1x2x1", fused=fused), 3) for fused in (False, True))
    for (losses, _, _), (others, _, _) in zip(parts, fused, strict=True):
        assert losses == pytest.approx(others, rel=1e-4)


def test_words_of_a_step_equal_the_derivation() -> None:
    """2 x 2 x 2, N = 211, B = 97, h = 12, 14 features, 10 classes, on a rank with 47 sampled rows in all blocks.

    Counted in an emulation that equals serial training.
    """
    facts = Facts(211, 1000, 14, 10, directed=True, labelled=211, training=211)
    spec = spec_of("1x2x2x2").model_copy(
        update={"training": spec_of("1x1x1x1").training.model_copy(update={"batch": 97})}
    )
    strategy = ScaleGNN(spec, facts)
    words: dict[tuple[str, TensorName, int], float] = {}
    found = Words(strategy.grid)
    strategy._add_step(found, dict.fromkeys(strategy.grid, 0), {X: 47, Y: 47, Z: 47})
    for key, count in found.items():
        words[key.direction.value, key.tensor, key.layer] = count
    forward, backward = "forward", "backward"
    assert words[forward, TensorName.H, -1] == 282
    for name, total in ((TensorName.T, 846), (TensorName.Z, 846), (TensorName.SQUARES, 141)):
        assert sum(words[forward, name, layer] for layer in range(3)) == total
    for name, total in (
        (TensorName.DT, 846),
        (TensorName.SQUARES, 141),
        (TensorName.DW, 108),
        (TensorName.DGAMMA, 18),
    ):
        assert sum(words[backward, name, layer] for layer in range(3)) == total
    by_axis = {
        (key.axis, key.tensor): count
        for key, count in found.items()
        if key.layer == -1 and key.direction == "backward"
    }
    assert by_axis["z", TensorName.DH] == 282  # of the head
    assert by_axis["x", TensorName.DW] == 42 + 30  # of the projection, and of the head
    assert sum(count for key, count in found.items() if key.tensor is TensorName.DH and key.layer >= 0) == (
        846 + 846  # the all_reduce, and the reshard including local elements
    )


def test_replay_from_facts_uses_the_mean_size_of_samples() -> None:
    """The ranks of a group together have the mean number of a sample's nonzeros."""
    facts = Facts(100_003, 2_000_000, 64, 10, directed=False, labelled=100_003, training=9)
    spec = spec_of("1x2x3x1", {"hidden": 12}).model_copy(
        update={"training": spec_of("1x1x1x1").training.model_copy(update={"batch": 100_003 // 2})}
    )
    chance = (100_003 // 2 - 1) / 100_002
    drawn = 100_003 // 2 + (2_000_000 - 100_003) * chance * chance
    ranks = [replay(ScaleGNN(spec, facts), rank) for rank in range(6)]
    flops = sum(
        amounts.flops for found in ranks for key, amounts in found.entries.items() if key.op is Op.SPMM
    )
    steps = 3
    assert flops == pytest.approx(steps * 3 * 4 * drawn * 12, rel=0.01)


def test_one_of_2048_ranks_is_replayed_from_facts_only() -> None:
    """ogbn-papers100M on 2048 ranks: elements equal the formula, and the rank holds three blocks of the graph."""
    facts = Facts(
        111_059_956, 3_339_184_661, 128, 172, directed=False, labelled=1_546_782, training=1_207_179
    )
    spec = spec_of("32x4x4x4", {"hidden": 128})
    strategy = ScaleGNN(
        spec.model_copy(update={"training": spec.training.model_copy(update={"batch": 1 << 20})}), facts
    )
    found = replay(strategy, 5)
    sent = sum(amounts.elements_payload for amounts in found.entries.values())
    counts = BlockCounts(ShapeBlocks(facts))
    assert sent == sum(strategy.words(strategy.coordinates(5), counts).values())
    assert found.persistent_bytes == strategy.memory(strategy.coordinates(5), counts)


LEARNS = {
    "training": {"epochs": 12, "warmup": 0, "batch": 120, "lr": 0.01, "evaluate_every": 2},
    "model": {"layers": 2, "hidden": 32, "projection": True, "norm": True, "residual": True, "dropout": 0.3},
}


@pytest.mark.long
@pytest.mark.parametrize("wire", ["full", "bf16"])
def test_training_stops_at_the_target_accuracy(wire: str, tmp_path: Path, fork_server: ForkServer) -> None:
    """It reaches the target on the smallest learnable graph with either wire, and the record has the time."""
    from harness.results.record import read_record
    from harness.runtime.launch.launch import launch

    spec = spec_of("1x2x1x1", LEARNS["model"], wire=wire).model_dump(mode="json")
    spec |= {"dataset": {"name": "tiny-sbm"}, "training": LEARNS["training"] | {"target": 0.6}}
    root = Path(__file__).parents[2]
    asked = Spec.model_validate(spec)
    done = read_record(launch(asked, root, tmp_path, lambda _: None, fork_server=fork_server))
    assert done.record["status"] == "ok", done.record["error"]
    summary = done.record["summary"]
    accuracy: pd.DataFrame = done.table("accuracy")
    test = accuracy[accuracy.split == "test"]
    assert test.accuracy.iloc[-1] >= 0.6 > max(test.accuracy.iloc[:-1], default=0)
    assert summary["epochs"] == test.epoch.iloc[-1] + 1 <= 12
    assert summary["seconds_to_target"] == pytest.approx(test.train_seconds.iloc[-1])
    assert summary["evaluation_seconds"] > 0
    assert summary["elements_payload"] == summary["elements_payload_formula"]
