"""What verbs that predict take in common: where the sizes of the graph come from, and the settings of the run."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.progress import Log
from harness.cli.commands.request import CONFIG, Names, Request, Settings

if TYPE_CHECKING:
    from harness.experiment.known_graph import GraphLookup
    from harness.prediction.advice import Predictor
    from harness.prediction.epoch import Prediction
    from harness.spec.machine_card import MachineCard
    from harness.spec.spec import Spec
    from harness.strategy import Facts, Ready

CARD_NOTE = (
    "A card does not contain the edges. Sizes that depend on the edges are predicted for a random order of the "
    "vertices. For strategies that send the boundary of a part this is an upper bound: a good partition needs fewer "
    "rows. Build the graph and use --partition metis, or name three twins of it (--twins)."
)


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class PredictionRequest(Request):
    """What all predictions take."""

    from_card: bool = False
    """Take the sizes of the graph from its card even if it is built."""
    twins: Names = ()
    """The scales of three twins of the graph, such as 1/256,1/64,1/16, which are built if needed, to extrapolate the
    sizes of strategies that split the vertices into parts."""
    settings: Settings = Field(default_factory=dict, kw_only=True)
    """A key of `harness list settings`, for example training.epochs=5; may be repeated."""

    def nest_settings(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request of a run: keys of a spec, such as `dataset.name`, and the settings."""
        from harness.experiment.requests import nest_settings

        return nest_settings({**named, **self.settings})

    def make_graph_lookup(self) -> "GraphLookup":
        """Return a function that looks up what is known about a graph: with twins only what its card says."""
        from harness.experiment.known_graph import KnownGraph, facts_of_card, look_up_graph
        from harness.graph.cards.catalog import load_card

        root = self.home
        if self.twins:
            return cache(lambda choice: KnownGraph(facts_of_card(load_card(root, choice.name)), None))
        return cache(lambda choice: look_up_graph(root, choice, from_card=self.from_card))

    def make_predictor(self, log: Log) -> "Predictor":
        """Return a function that predicts an epoch. With twins it extrapolates sizes that depend on a partition."""
        from harness.experiment.known_graph import admit_on_twins
        from harness.prediction.epoch import CachingPredictor
        from harness.prediction.twins import TWINS, predict_from_twins

        predict, root = CachingPredictor(), self.home
        if not self.twins:
            return predict
        if len(self.twins) != TWINS:
            raise UserError(f"--twins takes {TWINS} scales: fewer would not show where a size stops growing.")

        def predict_on_twins(
            ready: "Ready", card: "MachineCard", ranks: Sequence[int] | None = None
        ) -> "Prediction":
            strategy = ready.strategy
            if strategy.partitioned_over is None:
                return predict(ready, card, ranks)
            return predict_from_twins(strategy, card, admit_on_twins(root, strategy, self.twins, log), ranks)

        return predict_on_twins

    def describe_sizes(self, facts: "Facts") -> str:
        """Return a description of where the sizes come from."""
        twins = f"; those that depend on a partition from its twins of {', '.join(self.twins)}"
        return describe_size_source(facts) + (twins if self.twins else "")


def describe_size_source(facts: "Facts") -> str:
    """Return a description of where the sizes of a graph come from."""
    return (
        "counted in its store" if facts.exact else "expected from its card, in a random order of the vertices"
    )


def admit_spec(spec: "Spec", look_up: "GraphLookup") -> "Ready":
    """Return the strategy of a spec, admitted for its graph."""
    from harness.registry import load_strategy
    from harness.strategy import Ready, admit

    graph = look_up(spec.dataset)
    return Ready(admit(load_strategy(spec.strategy.name), spec, graph.facts), graph.blocks)
