"""Predicts a full-graph epoch on a graph with many bins, by extrapolation from two smaller graphs of the same density.

A rank of `g3` repeats the same work for bin after bin. Only sizes are known, so all bins are equal, and so are their
messages: their rows and nonzeros depend on the density of the graph and on the number of ranks, not on the number of
vertices. Every time, size and number of elements of an epoch is therefore a constant plus a multiple of the number of
vertices. Two graphs, a sixty-fourth and a thirty-second of the size, determine both.
"""

from dataclasses import replace

from harness.base.errors import UserError
from harness.prediction.epoch import PredictedSeconds, Prediction, predict
from harness.spec.machine_card import MachineCard
from harness.strategy import Facts, Ready, Strategy, admit

PARTS = (64, 32)
"""The sizes of the smaller graphs: the graph is this many times as large, the smallest first."""


def predict_from_scaled_sizes(
    strategy: Strategy, card: MachineCard, parts: tuple[int, int] = PARTS
) -> Prediction:
    """Predict an epoch from two graphs, the `parts`-th of the strategy's graph in vertices and nonzeros."""
    if strategy.mini_batches or strategy.facts.bounds:
        raise UserError(
            f"{strategy.name} on {strategy.spec.dataset.name} cannot be predicted from smaller sizes: its epoch "
            "must be one step on the whole graph, and its parts must be known by their sizes only."
        )
    small, large = (
        admit(type(strategy), strategy.spec, scale_facts(strategy.facts, 1 / each)) for each in parts
    )
    sizes = [each.facts.vertices for each in (small, large, strategy)]
    return extrapolate(predict(Ready(small), card), predict(Ready(large), card), sizes)


def scale_facts(facts: Facts, scale: float) -> Facts:
    """Return the facts of a graph with this share of the vertices and nonzeros."""
    counts = ("vertices", "nonzeros", "labelled", "training")
    return replace(facts, exact=False, **{name: round(scale * getattr(facts, name)) for name in counts})


def extrapolate(small: Prediction, large: Prediction, vertices: list[int]) -> Prediction:
    """Extrapolate predictions linearly; `vertices` are those of the two graphs and of the one to predict."""
    distance = (vertices[2] - vertices[1]) / (vertices[1] - vertices[0])

    def extend(one: float, other: float) -> float:
        return max(other + (other - one) * distance, 0.0)

    value = extend(small.seconds.value, large.seconds.value)
    ends = (value * end / large.seconds.value for end in (large.seconds.low, large.seconds.high))
    return Prediction(
        large.rank,
        PredictedSeconds(value, *ends),
        {key: extend(small.entries.get(key, 0.0), seconds) for key, seconds in large.entries.items()},
        extend(small.waiting, large.waiting),
        extend(small.elements_received, large.elements_received),
        round(extend(small.peak_bytes, large.peak_bytes)),
        {
            name: extend(small.shares[name] * small.seconds.value, share * large.seconds.value) / value
            for name, share in large.shares.items()
        },
    )
