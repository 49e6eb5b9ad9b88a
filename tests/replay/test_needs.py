"""What a graph would take of a rank is what a replay of it counts, for whoever has a grid."""

from harness.experiment.known_graph import KnownGraph
from harness.experiment.requests import admit_on_all_grids, make_spec
from harness.registry import load_strategy
from harness.replay import find_requirements, replay
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.strategy import Facts, admit

FACTS = Facts(4000, 60_000, 40, 8, False, 4000, 1000, exact=False)


def test_every_strategy_says_what_it_needs_or_why_not():
    root = find_root()
    request = {"dataset": "reddit", "ranks": 8}
    names = ("cagnet-1d", "plexus", "serial")
    candidates = [
        admit_on_all_grids(root, name, request, lambda _: KnownGraph(FACTS, None), name) for name in names
    ]
    found = {one.strategy: one for one in find_requirements(candidates)}
    assert "serial has no grid" in found["serial"].refused
    assert found["serial"].persistent_bytes is None
    plexus, on_grids = found["plexus"], {}
    for grid in load_strategy("plexus").grids(8):
        spec = make_spec(root, {"strategy": "plexus", "dataset": "reddit", "ranks": 8, "grid": grid}, "test")
        replayed = replay(admit(load_strategy("plexus"), spec, FACTS))
        words = round(sum(amounts.words_received for amounts in replayed.entries.values()))
        held = sum(replayed.persistent_bytes.values())
        on_grids[format_grid(spec.grid)] = words, held, replayed.peak_bytes
    assert plexus.grids == len(on_grids) == 10, "ways to write 8 as a product of three"
    assert (plexus.elements_received, plexus.persistent_bytes, plexus.peak_bytes) == on_grids[plexus.grid]
    assert plexus.peak_bytes > plexus.persistent_bytes
    assert plexus.elements_received == min(words for words, *_ in on_grids.values())
    assert plexus.worst_elements_received == on_grids[plexus.worst_grid][0]
    assert plexus.worst_elements_received == max(words for words, *_ in on_grids.values())
    assert plexus.elements_received < plexus.worst_elements_received
    features = 4000 * 40 + 2 * 4000 * 16
    assert found["cagnet-1d"].elements_received > 7 / 8 * features, "each epoch all other ranks' rows come by"


def test_elements_of_many_steps_are_those_of_the_whole_epoch():
    """Only the first steps are replayed."""
    root = find_root()
    for name in ("graphsage", "cagnet-1d"):
        request = {"dataset": "reddit", "ranks": 4, "training": {"batch": 16}}
        request = request if name == "graphsage" else {"dataset": "reddit", "ranks": 4}
        candidate = admit_on_all_grids(root, name, request, lambda _: KnownGraph(FACTS, None), name)
        (needed,) = find_requirements([candidate])
        (ready,) = candidate.ready
        assert ready.strategy.steps == (16 if name == "graphsage" else 1)
        whole = replay(ready.strategy)
        assert needed.elements_received == round(sum(each.words_received for each in whole.entries.values()))
        assert needed.peak_bytes == whole.peak_bytes
