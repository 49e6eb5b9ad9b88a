"""Every verb that names the time of an epoch names the same time for the same run and machine."""

import json
from typing import Any

import pytest

import harness
from harness.base.errors import UserError
from harness.claims import Evidence
from harness.cli import main
from harness.experiment.known_graph import look_up_graph
from harness.experiment.requests import admit_on_all_grids, make_spec
from harness.prediction import epoch as prediction
from harness.prediction.advice import advise
from harness.prediction.replay import ReplayedRank, replay
from harness.registry import load_strategy, registered_strategies
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.strategy import Strategy

pytestmark = pytest.mark.long

ROOT, DATASET, RANKS = find_root(), "tiny-sbm", 4
BUILT_IN = [
    point.name
    for point in registered_strategies()
    if point.value.startswith("harness.strategies.")
    and point.name != "pyg"  # which needs libraries of its own
]


@pytest.fixture(autouse=True)
def replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs share the replays of equal ranks of equal specs; the ranks and steps that each asks for are its own."""
    known: dict[str, ReplayedRank | UserError] = {}

    def once(strategy: Strategy, rank: int = 0, blocks: Any = None, **how: Any) -> ReplayedRank:
        spec = strategy.spec.model_dump_json(exclude={"machine": {"name"}, "launch": True})
        key = f"{spec} {rank} {blocks is None} {sorted(how.items())}"
        if key not in known:
            try:
                known[key] = replay(strategy, rank, blocks, **how)
            except UserError as refusal:
                known[key] = refusal
        found = known[key]
        if isinstance(found, UserError):
            raise found
        return found

    monkeypatch.setattr(prediction, "replay", once)


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON that a command prints; None if it refuses."""
    status = main([*words, "--json"])
    printed = capsys.readouterr().out
    return json.loads(printed) if status == 0 else None


BY_CARD = ("cagnet-1d", "compose", "distgnn", "graphsage", "plexus")
"""The strategies that are tried quickly on the second machine too; the slow tests try all."""


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        *((name, "local") for name in BUILT_IN),
        *(
            pytest.param(name, "perlmutter", marks=[] if name in BY_CARD else pytest.mark.slow)
            for name in BUILT_IN
        ),
    ],
)
def test_every_verb_names_the_same_epoch(
    name: str, machine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On `local`, where ranks share cores, by the store of the graph; on `perlmutter` by its card."""
    from_card = machine == "perlmutter"
    batch = {"training.batch": 32} if load_strategy(name).mini_batches else {}
    ranks = RANKS if load_strategy(name).grids(RANKS) else 1
    asked = ["--strategy", name, "--dataset", DATASET, "--ranks", str(ranks)]
    asked += ["--from-card"] * from_card + [f"--set={key}={value}" for key, value in batch.items()]
    on_grids = answered(capsys, "predict", *asked, "--machine", machine, "--grid", "all")["predicted"]
    timed = {tuple(one["grid"].values()): one["seconds"]["value"] for one in on_grids}
    request = {"strategy": name, "dataset": DATASET, "ranks": ranks, "machine": machine}
    request |= {"training": {"batch": 32}} if batch else {}
    card, graph = (
        load_machine_card(ROOT, machine),
        look_up_graph(ROOT, make_spec(ROOT, request, "here").dataset, from_card=from_card),
    )
    asked_again = {**request, "strategy": {"name": name}, "dataset": {"name": DATASET}}
    advice = advise([admit_on_all_grids(ROOT, name, asked_again, lambda _: graph, "here")], card)
    advised = {
        tuple(
            option.strategy.spec.grid[axis] for axis in option.strategy.axes
        ): option.prediction.seconds.value
        for option in [*advice.full_graph, *advice.mini_batch]
    }
    assert bool(advised) is bool(timed) and advised.items() <= timed.items()
    grids = [tuple(grid.values()) for grid in load_strategy(name).grids(ranks)]
    first = min(timed, key=timed.__getitem__, default=grids[0])
    told = answered(capsys, "predict", *asked, "--machine", machine, "--grid", "x".join(map(str, first)))
    assert (told and told["predicted"][0]["seconds"]["value"]) == timed.get(first)
    if not from_card:
        grid = "x".join(map(str, first))
        assert (
            harness.predict(name, DATASET, ranks, machine, grid=grid, settings=batch).prediction.seconds.value
            == timed[first]
        )
        return
    if timed:
        sizes = dict(zip(load_strategy(name).axes, first, strict=True))
        spec = make_spec(ROOT, {**request, "grid": sizes}, "here")
        assert Evidence(ROOT).time_epoch_of_run(spec).seconds == timed[first]
