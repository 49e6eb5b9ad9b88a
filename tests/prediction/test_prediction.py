"""Predictions: finite, repeatable, of parts that add up, for every strategy and every grid."""

from collections import Counter
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.conformance.case import make_check_graph
from harness.graph.store.memory_store import MemoryStore
from harness.ledger import AxisName, Phase, TensorName
from harness.prediction.advice import (
    ADVICE,
    Option,
    PartialSearch,
    SearchResult,
    _search_grids,
    advise,
    compare_options,
    compute_lower_bound,
    estimate_seconds,
    plan_grids,
)
from harness.prediction.epoch import (
    CachingPredictor,
    Prediction,
    PricedRank,
    RankEpoch,
    compute_noise,
    predict,
    price_epochs,
    replay_ranks,
    representative_ranks,
)
from harness.prediction.event_prices import EventPrices
from harness.prediction.pricing import TimePart, list_constants, price_call, price_copies, price_kernels
from harness.prediction.replay import replay
from harness.registry import load_strategy, registered_strategies
from harness.spec.machine_card import MachineCard, Noise, list_machines, load_machine_card
from harness.spec.spec import Spec
from harness.strategy import (
    BlockCounts,
    Candidate,
    Facts,
    Ready,
    ShapeBlocks,
    Strategy,
    admit,
    csr_bytes,
    facts_of,
)

ROOT = Path(__file__).parents[2]
STORE = MemoryStore(make_check_graph(211))
PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, False, 2_449_029, 196_615, exact=False)
PERLMUTTER = load_machine_card(ROOT, "perlmutter")
ALONE = dict.fromkeys("dxyz", 1)
NAMES = sorted(point.name for point in registered_strategies() if point.name != "pyg")
"""pyg samples by a library that is not among the packages."""


def ready(
    name: str,
    grid: dict[Any, int],
    facts: Facts | None = None,
    *,
    device: str = "cpu",
    params: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **training: Any,
) -> Strategy:
    strategy, ranks = load_strategy(name), 1
    for size in grid.values():
        ranks *= size
    spec = {
        "strategy": {"name": name, "params": params or {}},
        "dataset": "any",
        "ranks": ranks,
        "grid": grid,
        "model": model or {"layers": 3, "hidden": 16},
        "training": {"batch": 40 if strategy.mini_batches else 0, **training},
        "machine": {"name": "any", "device": device, "engine": "nccl" if device == "cuda" else "gloo"},
    }
    return admit(strategy, Spec.model_validate(spec), facts or facts_of(STORE))


def first_grid(name: str) -> dict[AxisName, int]:
    strategy = load_strategy(name)
    return next(strategy.grids(ranks)[0] for ranks in (4, 2, 1) if strategy.grids(ranks))


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_predicted_with_all_ranks(name: str) -> None:
    """The parts add up, the words are those of the formula, and the same prediction twice is equal to the bit."""
    strategy = ready(name, first_grid(name))
    predicted = predict(Ready(strategy, STORE), PERLMUTTER)
    assert predicted == predict(Ready(strategy, STORE), PERLMUTTER)
    seconds = predicted.seconds
    assert 0 < seconds.low <= seconds.value <= seconds.high < 10
    assert sum(predicted.entries.values()) == pytest.approx(seconds.value)
    assert 0 <= predicted.waiting <= seconds.value
    assert sum(predicted.shares.values()) > 0


@pytest.mark.parametrize("name", [name for name in NAMES if not load_strategy(name).mini_batches])
def test_predicted_words_are_those_of_the_whole_replay(name: str) -> None:
    strategy = ready(name, first_grid(name))
    predicted = predict(Ready(strategy, STORE), PERLMUTTER)
    whole = replay(strategy, predicted.rank, STORE, skip_transient=True)
    assert predicted.elements_received == sum(each.elements_received for each in whole.entries.values())


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("plexus", {"x": 2, "y": 3, "z": 3}),
        ("cagnet-3d", {"row": 3, "col": 2, "fibre": 2}),
        ("cagnet-sa-1.5d", {"row": 4, "col": 4}),
    ],
)
def test_the_corners_of_even_blocks_stand_for_all_ranks(name: str, grid: dict[Any, int]) -> None:
    strategy = ready(name, grid, PRODUCTS)
    few, every = representative_ranks(Ready(strategy)), range(strategy.spec.ranks)
    assert len(few) < len(every)
    told, whole = (predict(Ready(strategy), PERLMUTTER, ranks) for ranks in (few, every))
    assert told.seconds.value == pytest.approx(whole.seconds.value, rel=0.03)
    assert told.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-4)


def test_the_peak_has_all_mini_batches_that_are_drawn_at_once() -> None:
    """As `largest` counts them."""
    peaks, drawn = dict[int, int](), dict[int, int]()
    for bulk in (1, 5):
        params = {"fanouts": [3, 3, 3], "bulk": bulk}
        strategy = ready("bulk-sage", {"row": 2, "col": 2}, PRODUCTS, params=params)
        peaks[bulk] = predict(Ready(strategy), PERLMUTTER).peak_bytes
        drawn[bulk] = strategy.sample_bytes(BlockCounts(ShapeBlocks(PRODUCTS)))
    assert peaks[5] - peaks[1] == drawn[5] - drawn[1] > 0


def test_steps_that_are_not_replayed_are_as_the_last() -> None:
    """ScaleGNN's steps are alike: of three, and of all."""
    strategy = ready("scalegnn", {"d": 1, "x": 2, "y": 1, "z": 1}, batch=20)
    assert strategy.steps > 5
    few = predict(Ready(strategy, STORE), PERLMUTTER)
    ranks = frozenset(range(2))
    every = [RankEpoch(strategy, replay(strategy, rank, STORE), ranks) for rank in ranks]
    assert few.seconds.value == pytest.approx(price_epochs(every, PERLMUTTER).seconds.value, rel=0.02)


@pytest.mark.parametrize("name", list_machines(ROOT))
@pytest.mark.parametrize("grid", [(64, 1, 1), (1, 1, 64), (4, 4, 4)])
def test_the_cards_predict_times_for_tall_grids_of_large_graphs(name: str, grid: tuple[int, ...]) -> None:
    card = load_machine_card(ROOT, name)
    strategy = ready("plexus", dict(zip("xyz", grid, strict=True)), PRODUCTS)
    if not (card.rates and card.links):
        with pytest.raises(UserError, match=f"{name}.yaml"):
            predict(Ready(strategy), card)
        return
    predicted = predict(Ready(strategy), card)
    assert 1e-4 < predicted.seconds.low < predicted.seconds.high < 1e4


@pytest.mark.parametrize("latency", [1, 1000])
def test_a_prefetched_sample_hides_behind_the_step_before_it(latency: float) -> None:
    """A rank waits for the first sample, and for what is longer of each later one than the step before."""
    card, cost = better(PERLMUTTER, "links", "host_latency_us", latency), dict[bool, Prediction]()
    for prefetch in (False, True):
        strategy = ready("scalegnn", ALONE, params={"prefetch": prefetch}, batch=100)
        cost[prefetch] = predict(Ready(strategy, STORE), card)
    steps, sampling = strategy.steps, sampling_seconds(cost[False])
    step, sample = (cost[False].seconds.value - sampling) / steps, sampling / steps
    longer = max(sample - step, 0.0)
    assert steps > 2
    assert (longer > step) == (latency > 1)
    assert cost[False].waiting == 0
    assert cost[True].waiting == pytest.approx((steps - 1) * longer, rel=0.05)
    assert sampling_seconds(cost[True]) == pytest.approx(sample + (steps - 1) * longer, rel=0.05)


def test_fused_operators_are_one_kernel_that_reads_its_operands_once() -> None:
    """Norm, ReLU and dropout: four kernels a layer and step, of Z, H, dH and dZ, and of a mask."""
    model = {"layers": 3, "hidden": 16, "projection": True, "norm": True, "dropout": 0.5}
    apart, fused = (
        replay(ready("scalegnn", ALONE, params={"fused": fused}, model=model, batch=100), 0, STORE, steps=1)
        for fused in (False, True)
    )
    assert sum(amounts.flops for amounts in apart.entries.values()) == sum(
        amounts.flops for amounts in fused.entries.values()
    )
    norms = [event for event in fused.events if event.key.tensor in (TensorName.SQUARES, TensorName.DH)]
    norms = [event for event in norms if event.key.phase is Phase.ACTIVATE and event.kernels]
    assert [event.kernels for event in norms] == [1] * 3 * 3
    Z = 100 * 16 * 4
    assert norms[0].streamed == Z + 100 * 4  # the squares of Z, summed over each row
    assert sum(event.kernels for event in fused.events) < sum(event.kernels for event in apart.events)
    assert sum(event.streamed for event in fused.events) < sum(event.streamed for event in apart.events)


def test_prefetching_saves_no_time_where_ranks_share_cores() -> None:
    alone, ahead = (
        predict(
            Ready(ready("scalegnn", ALONE, params={"prefetch": prefetch}, batch=100), STORE),
            load_machine_card(ROOT, "local"),
        )
        for prefetch in (False, True)
    )
    assert ahead.seconds.value == pytest.approx(alone.seconds.value)
    assert ahead.waiting == 0


def sampling_seconds(predicted: Prediction) -> float:
    return sum(seconds for key, seconds in predicted.entries.items() if key.phase is Phase.SAMPLE)


@pytest.mark.parametrize("placed", ["host", "device"])
def test_copies_are_the_matrices_that_leave_the_host(placed: str) -> None:
    """Bins on the host are copied in each product: their rows of A in every layer, of A^T in all but the first."""
    params = {"bins_on": placed, "bin_nodes": 30}
    strategy = ready("g3", {"p": 2}, device="cuda", params=params)
    for rank, rows in enumerate(strategy.blocks()):
        sizes = [STORE.adjacency(rows, cols).nnz for cols in (rows, range(STORE.n))]
        pointers = len(rows) + -(-len(rows) // 30) - 1  # each bin has one more than rows
        inside, outside = (
            csr_bytes(pointers, nonzeros, "float32") for nonzeros in (sizes[0], sizes[1] - sizes[0])
        )
        copied = 3 * (inside + outside) + 2 * inside if placed == "host" else 0
        events = replay(strategy, rank, STORE).events
        assert sum(event.copied for event in events) == copied
        assert all(event.copies % 3 == 0 for event in events)


def test_a_mini_batch_is_drawn_where_the_graph_is() -> None:
    strategy = ready("graphsage", {"d": 2})
    assert not any(event.copied for event in replay(strategy, 0, STORE).events)


def better(card: MachineCard, section: str, key: str, factor: float) -> MachineCard:
    constant = getattr(getattr(card, section), key)
    changed = constant.model_copy(update={"value": factor * constant.value})
    return card.model_copy(update={section: getattr(card, section).model_copy(update={key: changed})})


@pytest.mark.parametrize(
    ("section", "key", "factor"),
    [
        ("rates", "memory_gbs", 1.01),
        ("rates", "tflops", 1.01),
        ("rates", "launch_us", 1 / 1.01),
        ("links", "node_gbs", 1.01),
        ("links", "peer_gbs", 1.01),
        ("links", "latency_us", 1 / 1.01),
    ],
)
def test_a_share_is_what_a_better_constant_saves(section: str, key: str, factor: float) -> None:
    strategy = ready("plexus", {"x": 4, "y": 2, "z": 2}, PRODUCTS)
    before = predict(Ready(strategy), PERLMUTTER)
    after = predict(Ready(strategy), better(PERLMUTTER, section, key, factor))
    saved = 1 - after.seconds.value / before.seconds.value
    assert saved == pytest.approx(before.shares[f"{section}.{key}"] * (1 - 1 / 1.01), abs=2e-4)


@pytest.mark.parametrize(("name", "grid"), [("plexus", {"x": 2, "y": 1, "z": 2}), ("graphsage", {"d": 4})])
def test_an_epoch_on_a_gpu_is_not_shorter_than_the_issue_of_its_kernels(
    name: str, grid: dict[Any, int]
) -> None:
    """On a tiny graph the host is the bottleneck, unless a CUDA graph issues all kernels at once."""
    strategy = ready(name, grid)
    rates = PERLMUTTER.rates
    assert rates and rates.issue_us
    predicted = predict(Ready(strategy, STORE), PERLMUTTER)
    (epoch,) = replay_ranks(Ready(strategy, STORE), [predicted.rank], strategy.steps)
    kernels = sum(event.kernels + len(event.products) for event in epoch.replayed.events)
    issue = 1e-6 * rates.issue_us.value * kernels
    assert kernels > 50 and predicted.seconds.value >= issue
    assert sum(predicted.shares[f"rates.{each}"] for each in ("issue_us", "launch_us")) > 0.1
    assert sum(predicted.entries.values()) == pytest.approx(predicted.seconds.value)
    free = PERLMUTTER.model_copy(update={"rates": rates.model_copy(update={"issue_us": None})})
    slow = rates.issue_us.model_copy(update={"value": 1000.0})
    bound = PERLMUTTER.model_copy(update={"rates": rates.model_copy(update={"issue_us": slow})})
    assert predict(Ready(strategy, STORE), free).seconds.value <= predicted.seconds.value
    limited = predict(Ready(strategy, STORE), bound)
    assert limited.seconds.value >= 1e-3 * kernels
    assert limited.limited_by == "rates.issue_us"
    assert (
        limited.shares["rates.issue_us"] > 0.8
    )  # the rest is waiting for other ranks, whose hosts are as slow


def test_a_cuda_graph_takes_no_time_of_the_host_for_each_kernel() -> None:
    rates = PERLMUTTER.rates
    assert rates
    free = PERLMUTTER.model_copy(update={"rates": rates.model_copy(update={"issue_us": None})})
    grid: dict[Any, int] = {"p": 4}
    ordinary, captured = (
        predict(Ready(ready("cagnet-1d", grid, device="cuda", cuda_graph=is_captured), STORE), PERLMUTTER)
        for is_captured in (False, True)
    )
    without = predict(Ready(ready("cagnet-1d", grid, device="cuda"), STORE), free)
    assert captured.seconds.value == pytest.approx(without.seconds.value)
    assert captured.seconds.value < ordinary.seconds.value


def test_the_interval_is_wider_where_constants_are() -> None:
    strategy = ready("plexus", {"x": 2, "y": 2, "z": 2}, PRODUCTS)
    assert PERLMUTTER.rates
    loose = PERLMUTTER.rates.spmm.model_copy(update={"within": 3.0})
    wide = predict(
        Ready(strategy),
        PERLMUTTER.model_copy(update={"rates": PERLMUTTER.rates.model_copy(update={"spmm": loose})}),
    )
    narrow = predict(Ready(strategy), PERLMUTTER)
    assert wide.seconds.value == narrow.seconds.value
    assert wide.seconds.high > narrow.seconds.high
    assert wide.seconds.value / wide.seconds.low == pytest.approx(wide.seconds.high / wide.seconds.value)


@pytest.mark.parametrize(("moves", "copies"), [("broadcasts", 0), ("all_gather", 2)])
def test_assembly_of_blocks_of_A_is_on_the_tape(moves: str, copies: int) -> None:
    """A broadcast brings a packed block, which is read in place; gathered blocks are read and written once more."""
    strategy = ready("cagnet-2d", {"row": 4, "col": 4}, PRODUCTS, params={"moves": moves})
    arrived = [event for event in replay(strategy).events if event.key.tensor is TensorName.A]
    sent = sum(event.amounts.bytes for event in arrived)
    assert sum(event.streamed for event in arrived) == pytest.approx(copies * sent, rel=1e-3)
    assert PERLMUTTER.rates
    seconds = sum(price_kernels(event, PERLMUTTER.rates)[TimePart.MEMORY] for event in arrived)
    assert (seconds > 0) == (copies > 0)


def test_messages_through_the_host_are_slower() -> None:
    """The card of gloo prices the same replay, as a claim's `card` does."""
    strategy, gloo = ready("cagnet-1d", {"p": 8}, PRODUCTS), load_machine_card(ROOT, "perlmutter-gloo")
    (epoch,) = replay_ranks(Ready(strategy), [0])
    by_nccl, by_gloo = (price_epochs([epoch], card) for card in (PERLMUTTER, gloo))
    assert by_gloo.shares["links.host_gbs"] > 0 == by_nccl.shares["links.host_gbs"]
    assert by_gloo.waiting > 5 * by_nccl.waiting


def test_noise_of_links_widens_the_interval_with_the_number_of_ranks() -> None:
    """1,024 ranks whose messages deviate by 0.27 take twice as long: 1 + 0.27 sqrt(2 ln 1024) = 2."""
    noisy, silent = (
        better_links(PERLMUTTER, noise=noise) for noise in (Noise(deviation=0.27, source="any"), None)
    )
    shares = np.zeros(len(TimePart))
    shares[TimePart.NODE] = 1.0
    assert exp(compute_noise(noisy, shares, 1024)) == pytest.approx(2.0, rel=0.01)
    deviations = [compute_noise(noisy, shares, ranks) for ranks in (1, 2, 64, 4096)]
    assert deviations == sorted(set(deviations)) and deviations[0] == 0
    assert compute_noise(silent, shares, 1024) == compute_noise(noisy, np.zeros(len(TimePart)), 1024) == 0
    ranks = Ready(ready("plexus", {"x": 4, "y": 2, "z": 2}, PRODUCTS))
    one, other = predict(ranks, noisy), predict(ranks, silent)
    assert one.seconds.value == other.seconds.value and one.shares == other.shares
    widths = [log(each.seconds.high / each.seconds.value) for each in (one, other)]
    assert widths[0] ** 2 == pytest.approx(widths[1] ** 2 + one.noise**2)
    assert one.noise > other.noise == 0
    inside = Ready(ready("plexus", {"x": 2, "y": 2, "z": 1}, PRODUCTS))
    assert predict(inside, noisy).noise == 0, "one node"


def better_links(card: MachineCard, **changed: Any) -> MachineCard:
    assert card.links
    return card.model_copy(update={"links": card.links.model_copy(update=changed)})


def test_advice_ranks_what_fits_and_names_what_does_not() -> None:
    candidates = [
        Candidate(
            "plexus", [Ready(ready("plexus", {"x": x, "y": 4 // x, "z": 1}, PRODUCTS)) for x in (1, 2, 4)], ""
        ),
        Candidate("cagnet-1d", [Ready(ready("cagnet-1d", {"p": 4}, PRODUCTS))], ""),
        Candidate("graphsage", [], "it has no grid"),
    ]
    advice = advise(candidates, PERLMUTTER)
    costs = [choice.cost for choice in advice.full_graph]
    assert costs == sorted(costs) and len(costs) == 3
    assert [refusal.strategy for refusal in advice.refused] == ["graphsage"]
    small = PERLMUTTER.model_copy(update={"memory_gb": 0.01})
    none = advise(candidates, small)
    assert not none.full_graph
    assert {choice.strategy.name for choice in none.too_large} == {"plexus", "cagnet-1d"}
    frame, empty = advice.to_frame(), none.to_frame()
    assert frame.status.tolist() == ["ok", "ok", "ok", "refused"]
    assert frame.message.tolist() == ["", "", "", "it has no grid"]
    best = advice.full_graph[0]
    first = frame.iloc[0]
    assert (first.strategy, first.grid, first.ranks) == (best.strategy.name, best.grid, 4)
    assert (first.epoch_seconds, first.seconds_per_vertex) == (best.prediction.seconds.value, best.cost)
    assert sorted(empty.status) == ["oom", "oom", "refused"]
    assert empty.dtypes.astype(str).to_dict() == frame.dtypes.astype(str).to_dict()


@pytest.mark.parametrize("name", [name for name in NAMES if not load_strategy(name).mini_batches])
def test_no_prediction_is_below_the_seconds_of_its_words(name: str) -> None:
    """So a grid that is left out for its words cannot have been among the fastest, on either machine."""
    cards = [load_machine_card(ROOT, machine) for machine in ("perlmutter", "ethernet")]
    bounded, predict_machines = Counter[str](), CachingPredictor()  # which replays a grid once for both
    few_bins = {"bin_nodes": 20_000} if name == "g3" else {}  # the words are those of any number of bins
    for grid, card in product(load_strategy(name).grids(16), cards):
        choice = Ready(ready(name, dict(grid), PRODUCTS, params=few_bins))
        try:
            if least := compute_lower_bound(choice, card):
                assert least <= predict_machines(choice, card, ranks=[0]).seconds.value
                bounded[card.name] += 1
        except UserError:
            continue
    assert len(bounded) == 2 or name in ("distgnn", "g3", "neutronstar", "serial")


def test_a_prediction_becomes_a_frame_with_one_row_whose_columns_hide_nothing() -> None:
    found = predict(Ready(ready("cagnet-1d", {"p": 4}, PRODUCTS)), PERLMUTTER)
    (row,) = found.to_frame().to_dict("records")
    assert row["epoch_seconds_low"] < row["epoch_seconds"] == found.seconds.value < row["epoch_seconds_high"]
    assert (row["elements_received"], row["rank_id"]) == (found.elements_received, found.rank)
    assert not [name for name in ADVICE.names if hasattr(pd.DataFrame, name)]
    assert set(row) < set(ADVICE.names)


def made_up(seconds: float, spmm: float, node: float) -> Option:
    strategy = ready("cagnet-1d", {"p": 4}, PRODUCTS)
    shares = dict.fromkeys(list_constants(PERLMUTTER), 0.0) | {"rates.spmm": spmm, "links.node_gbs": node}
    interval = predict(Ready(strategy), PERLMUTTER, ranks=[0]).seconds.__class__(seconds, seconds, seconds)
    return Option(Ready(strategy), Prediction(0, interval, {}, 0.0, 0.0, 0, shares))


def test_choices_that_hang_on_the_same_constants_do_not_tie() -> None:
    alike = compare_options(made_up(1.0, 0.5, 0.5), made_up(1.3, 0.5, 0.5), PERLMUTTER)
    other = compare_options(made_up(1.0, 1.0, 0.0), made_up(1.2, 0.0, 1.0), PERLMUTTER)
    assert alike == (False, [])
    assert other == (True, ["rates.spmm", "links.node_gbs"])


CHOICES = [
    Candidate(name, [Ready(ready(name, first_grid(name)), STORE)], "")
    for name in ("distdgl", "serial", "cagnet-1d", "salient")
]


def test_work_decides_what_is_predicted_the_cheapest_strategy_first() -> None:
    costs = {each.name: estimate_seconds(each, 1) for each in CHOICES}
    none = advise(CHOICES, PERLMUTTER, work=0)
    assert none.too_slow == costs and list(none.too_slow) == sorted(costs, key=lambda name: costs[name])
    assert not (none.full_graph or none.mini_batch or none.refused)
    assert set(none.to_frame().status) == {"not predicted"}
    cheapest, second = sorted(costs.values())[:2]
    some = advise(CHOICES, PERLMUTTER, work=cheapest + second)
    assert set(some.too_slow.values()) == set(sorted(costs.values())[2:])
    every = advise(CHOICES, PERLMUTTER)
    assert not every.too_slow
    assert {option.strategy.name for option in every.full_graph} == {"serial", "cagnet-1d"}
    assert {option.strategy.name for option in every.mini_batch} == {"distdgl", "salient"}


def many_grids(name: str = "plexus") -> Candidate:
    grids = load_strategy(name).grids(8)
    return Candidate(name, [Ready(ready(name, dict(grid), PRODUCTS)) for grid in grids], "")


def test_each_strategy_has_one_grid_before_any_has_more() -> None:
    candidates = [many_grids("plexus"), many_grids("cagnet-3d")]
    one = {each.name: estimate_seconds(each, 1) for each in candidates}
    assert plan_grids(candidates, sum(one.values())) == {"plexus": 1, "cagnet-3d": 1}
    everything = {each.name: len(each.ready) for each in candidates}
    assert plan_grids(candidates) == everything
    cheap, dear = sorted(candidates, key=lambda each: (one[each.name], each.name))
    work = one[dear.name] + estimate_seconds(cheap, len(cheap.ready))
    assert plan_grids(candidates, work) == {cheap.name: len(cheap.ready), dear.name: 1}
    plans = [plan_grids(candidates, work * share) for share in (0.2, 0.5, 1.0, 2.0, 5.0)]
    counts = [sum(plan.values()) for plan in plans]
    assert counts == sorted(counts)
    for share, plan in zip((0.2, 0.5, 1.0, 2.0, 5.0), plans, strict=True):
        spent = sum(
            estimate_seconds(each, plan.get(each.name, 0)) for each in candidates if each.name in plan
        )
        assert spent <= work * share * (1 + 1e-9)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_strategy_of_which_some_grids_are_predicted_is_advised_with_the_best_of_them(most: int) -> None:
    candidate = many_grids()
    found = _search_grids(candidate, PERLMUTTER, predict, most)
    assert isinstance(found, SearchResult) and not found.is_complete
    assert found.grids == most and len(found.options) == min(most, 2)
    for number, prediction in found.options:
        assert prediction == predict(candidate.ready[number], PERLMUTTER)
    bounds = [compute_lower_bound(each, PERLMUTTER) for each in candidate.ready]
    tried = sorted(range(len(bounds)), key=lambda number: bounds[number])[:most]
    assert {number for number, _ in found.options} <= set(tried)
    advice = advise([candidate], PERLMUTTER, work=1.001 * estimate_seconds(candidate, most))
    assert advice.partly == {"plexus": PartialSearch(most, len(candidate.ready))}
    assert not advice.too_slow


@pytest.mark.parametrize("name", ["cagnet-1d", "g3", "bulk-sage", "quiver"])
def test_events_that_are_alike_are_priced_as_each_of_them_is(name: str) -> None:
    (epoch,) = replay_ranks(Ready(ready(name, first_grid(name)), STORE), [1])
    prices = EventPrices(PERLMUTTER)
    on_card = PricedRank(epoch, prices)
    for number, event in enumerate(epoch.replayed.events):
        alone = price_kernels(event, PERLMUTTER.rates) + price_copies(event, PERLMUTTER.links)
        seconds, total = prices.price_work(event)
        assert (seconds == alone).all() and total == alone.sum()
        for call in epoch.calls.get(number, ()):
            cores, links = price_call(call.bytes, epoch.place_call(call, PERLMUTTER.links), PERLMUTTER)
            found = on_card._price_call(call, PERLMUTTER)
            assert (found.links == links).all()
            assert (found.wakeup + found.handling == cores).all()


def test_two_processes_give_the_advice_of_one() -> None:
    assert advise(CHOICES, PERLMUTTER, processes=2) == advise(CHOICES, PERLMUTTER)
