"""Compose reaches the lower bound on P x 1, never sends more than RDM, and its set-up words equal their formula."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from harness.comm.grid import Grid
from harness.conformance.case import Case, train_rank
from harness.conformance.checks import ScipyCounts, check_memory, check_replay, check_words
from harness.conformance.reference import train_densely
from harness.graph.store.memory_store import MemoryStore
from harness.ledger import Amounts, Key, Ledger, Op
from harness.prediction.replay import replay
from harness.runtime.trainer import Trainer
from harness.strategies.composed import Compose
from harness.strategy import Strategy, WordsKey
from tests.cases import DOUBLE, SGD, make_case

VERTICES = 192
GRIDS = [(1, 4), (2, 2), (4, 1)]


def make_composed_case(name: str, row: int, col: int, *, directed: bool = False, **asked: Any) -> Case:
    grid = {"row": row, "col": col} if name != "bns-gcn" else {"p": row}
    params, features = asked.pop("params", {}), asked.pop("features", False)
    return make_case(
        name,
        grid,
        params,
        training={**SGD, "features": features},
        model={"layers": 2, "hidden": 12, **asked},
        vertices=VERTICES,
        directed=directed,
        **DOUBLE,
    )


def words_of(case: Case) -> list[float]:
    """Return the words of an epoch on every rank."""
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    return [
        sum(strategy.words(at, counts).values())
        for at in map(strategy.coordinates, range(strategy.spec.ranks))
    ]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("hidden", [3, 20])
def test_without_slices_each_rank_receives_the_lower_bound_and_the_loss(layers: int, hidden: int) -> None:
    """Except for pairs of ranks for which sums of dH would be fewer than rows of G."""
    case = make_composed_case("compose", 4, 1, layers=layers, hidden=hidden)
    strategy, counts = chosen_of(case), ScipyCounts(case.store())
    narrow = sum(min(shape) for shape in strategy.shapes[1:])
    for at in map(strategy.coordinates, range(4)):
        boundary = strategy.boundary(at, counts)
        pairs = zip(boundary.incoming_rows().values(), boundary.outgoing_rows().values(), strict=True)
        saved = narrow * sum(max(0, rows_of_G - sums) for rows_of_G, sums in pairs)
        assert sum(strategy.words(at, counts).values()) == strategy.words_lower_bound(at, counts) + 1 + saved


@pytest.mark.parametrize(("row", "col"), GRIDS)
@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_no_rank_receives_more_words_than_with_rdm_on_the_same_grid(
    row: int, col: int, features: bool, kind: str
) -> None:
    for layers, hidden in product((1, 2, 3, 4), (4, 12, 40)):
        asked = {"layers": layers, "hidden": hidden, "features": features, "kind": kind}
        ours, theirs = (words_of(make_composed_case(name, row, col, **asked)) for name in ("compose", "rdm"))
        assert all(one <= other for one, other in zip(ours, theirs, strict=True)), (layers, hidden)


def test_the_narrower_side_of_a_layer_is_sent() -> None:
    """The rows of layer 2 have the width of the classes in both directions; with BNS-GCN, the hidden width."""
    sent = dict[str, float]()
    for name in ("compose", "bns-gcn"):
        case = make_composed_case(name, 4, 1, hidden=40, order="aggregate_first")
        strategy, counts = case.strategy(), ScipyCounts(case.store())
        tables = [strategy.words(at, counts) for at in map(strategy.coordinates, range(4))]
        sent[name] = sum(words for table in tables for key, words in table.items() if key.op == "all_to_all")
    classes = case.strategy().facts.classes
    assert sent["compose"] * 40 == sent["bns-gcn"] * classes


def received_before_training(case: Case) -> dict[WordsKey, float]:
    """Return the words on the ledger of a rank from building its operators."""
    strategy, ledger = case.strategy(), Ledger()
    grid = Grid.build(strategy.grid, ledger)
    ledger.start()
    Trainer(strategy, grid, case.store())
    return collect_words(ledger.stop())


def collect_words(entries: Mapping[Key, Amounts]) -> dict[WordsKey, float]:
    """Return the payload words of messages by their rows of the ledger."""
    return {
        WordsKey(key.direction, key.layer, key.op, key.axis, key.tensor): amounts.elements_payload
        for key, amounts in entries.items()
        if key.axis is not None and key.tensor is not None and amounts.elements_payload
    }


@pytest.mark.parametrize(("row", "col"), GRIDS)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("replicas", [False, True])
def test_words_before_training_equal_their_formula(
    ranks, row: int, col: int, directed: bool, kind: str, replicas: bool
) -> None:
    case = make_composed_case(
        "compose", row, col, directed=directed, kind=kind, params={"replicas": replicas}
    )
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    assert isinstance(strategy, Compose)
    formulas = [dict(strategy.setup_words(strategy.coordinates(rank), counts)) for rank in range(4)]
    assert ranks(4, received_before_training, case) == formulas
    assert all(formulas)


@pytest.mark.parametrize(("name", "row", "col"), [("compose", 2, 2), ("compose", 4, 1), ("bns-gcn", 4, 1)])
def test_replay_has_the_words_before_training_of_a_run(ranks, name: str, row: int, col: int) -> None:
    case = make_composed_case(name, row, col)
    for rank, ran in enumerate(ranks(4, received_before_training, case)):
        messages = replay(case.strategy(), rank, case.store()).setup_messages
        assert collect_words(messages) == ran
        assert sum(ran.values()) > 0


@pytest.mark.parametrize(
    "asked", [{"features": True}, {"projection": True}, {"params": {"precompute": False}}], ids=str
)
def test_first_layer_is_not_precomputed_if_its_input_changes_or_on_request(
    asked: dict[str, Any],
) -> None:
    case = make_composed_case("compose", 2, 2, **asked)
    strategy = chosen_of(case)
    assert strategy.setup_words(strategy.coordinates(0), ScipyCounts(case.store())) == {}
    assert "every epoch" in strategy.describe_first_layer()
    assert all(plan.power == 1 for plan in strategy.layers)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_with_replicas_the_second_layer_sends_no_words(layers: int, kind: str) -> None:
    case = make_composed_case("compose", 4, 1, layers=layers, kind=kind, params={"replicas": True})
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    tables = [strategy.words(at, counts) for at in map(strategy.coordinates, range(4))]
    assert all(
        {key.layer for key in table if key.op is Op.ALL_TO_ALL} == set(range(2, layers)) for table in tables
    )
    plain = make_composed_case("compose", 4, 1, layers=layers, kind=kind)
    assert all(one < other for one, other in zip(words_of(case), words_of(plain), strict=True))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"layers": 3, "norm": True, "dropout": 0.4},
        {"kind": "sage", "hidden": 4},
        {"params": {"replicas": True, "order": "model"}, "order": "combine_first"},
    ],
    ids=str,
)
def test_training_with_replicas_equals_serial_training(ranks, directed: bool, asked: dict[str, Any]) -> None:
    case = make_composed_case("compose", 4, 1, directed=directed, **{"params": {"replicas": True}, **asked})
    serial = train_densely(case.strategy(), MemoryStore(case.graph()), 4)
    results = ranks(4, train_rank, case, 4)
    for result in results:
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)
    findings = [check_words(case, results), check_memory(case, results)]
    findings += check_replay(case, results, range(4))
    assert [finding for finding in findings if not finding.holds] == []


def test_three_layers_are_planned_jointly() -> None:
    """If A is not split, the layout does not change between the second and the third layer."""
    strategy = chosen_of(make_composed_case("compose", 1, 4, layers=3))
    assert strategy.describe_plan() == "rows H W rows A (H W) columns (A H) W rows"


def chosen_of(case: Case) -> Compose:
    strategy: Strategy = case.strategy()
    assert isinstance(strategy, Compose)
    return strategy
