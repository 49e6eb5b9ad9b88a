"""Plexus' figure 5: for every grid, the epoch that the model predicts against the epoch that is observed.

    harness data build amazon-shape --permutation double
    python benchmarks/testbed up --hosts 8 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/plexus_grids.py
    python benchmarks/testbed down
    python benchmarks/plexus_grids.py --predict perlmutter --ranks 64

Each host runs one rank. Every grid of as many ranks as there are hosts trains three layers, hidden 128, with trained
features. Predicted times are those of `harness predict` by the card config/machines/ethernet.yaml; observed times are
the slowest rank's, the median of epochs. Prints a table and the rank correlation, and draws
figures/plexus-figure-5-RANKS.{pdf,png,svg}. With --predict nothing runs: each grid of ogbn-products has a bar, on a
machine that has only a card, by the paper's own model and by the replay.
"""

from typing import Any

from matplotlib.figure import Figure
from measuring import (
    Table,
    argument_parser,
    keep,
    on_hosts,
    spec_of,
    stacked_bars,
    train_in_turns,
    trainer_of,
)
from plexus_formulas import Coefficients, predict_milliseconds, terms_of_strategy
from scipy.stats import spearmanr

from harness.experiment.requests import make_spec
from harness.figures.palette import COLOURS
from harness.graph.blocks import Blocks
from harness.ledger import AxisName
from harness.predict.prediction import Prediction, predict
from harness.predict.pricing import price_rings
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.strategies.plexus.plexus import Plexus
from harness.strategy import WORD, BlockCounts, Facts, Ready, ShapeBlocks, Strategy, admit

PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, directed=False, labelled=2_449_029, training=196_615)
"""ogbn-products, by the paper's Table 4."""
DIMENSIONS = {1: "1D", 2: "2D", 3: "3D"}


def request(dataset: str, grid: dict[AxisName, int], ranks: int, machine: str) -> dict[str, Any]:
    return {
        "strategy": "plexus",
        "dataset": {"name": dataset, "permutation": "double"},
        "ranks": ranks,
        "grid": grid,
        "model": {"hidden": 128},
        "training": {"features": True},
        "machine": machine,
    }


def forecast(strategy: Strategy, blocks: Blocks | None = None) -> Prediction:
    """The prediction of an epoch by the card of the strategy's machine."""
    return predict(Ready(strategy, blocks), load_machine_card(find_root(), strategy.spec.machine.name))


def by_the_paper(strategy: Strategy) -> tuple[float, float]:
    """Seconds of products and of communication by the paper's own model, equations 4.4 and 4.6."""
    card = load_machine_card(find_root(), strategy.spec.machine.name)
    assert isinstance(strategy, Plexus) and card.plexus_model and card.links
    coefficients = Coefficients(**card.plexus_model.model_dump())
    words = strategy.words(strategy.coordinates(0), BlockCounts(ShapeBlocks(strategy.facts)))
    moving = price_rings(words, strategy.grid, card.links, WORD[strategy.spec.precision])
    return predict_milliseconds(terms_of_strategy(strategy), coefficients) / 1e3, moving


def predict_all(machine: str, ranks: int) -> None:
    """Every grid of ogbn-products, the best first."""
    forecasts, plexus = {}, load_strategy("plexus")
    for grid in plexus.grids(ranks):
        spec = make_spec(find_root(), request("ogbn-products", grid, ranks, machine), "benchmark")
        strategy = admit(plexus, spec, PRODUCTS)
        forecasts[format_grid(grid, " ")] = by_the_paper(strategy), forecast(strategy)
    best_first = {
        name: paper for name, (paper, _) in sorted(forecasts.items(), key=lambda pair: sum(pair[1][0]))
    }
    table = Table("grid", "products ms", "communication ms", "epoch ms", "predicted from the replay, ms")
    for name, (multiplying, moving) in best_first.items():
        times = (multiplying, moving, multiplying + moving, forecasts[name][1].seconds.value)
        table.row(name, *(f"{1e3 * seconds:.1f}" for seconds in times))
    products, communication = (
        [1e3 * seconds for seconds in part] for part in zip(*best_first.values(), strict=True)
    )
    parts = {"products with A": products, "communication": communication}
    title, height = "predicted time of an epoch (ms)", 0.4 + 0.15 * len(best_first)
    keep(
        lambda: stacked_bars(list(best_first), parts, title, height),
        f"plexus-figure-5-{machine}",
        "ogbn-products",
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="amazon-shape")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--predict", metavar="MACHINE", help="run nothing; predict grids of ogbn-products")
    parser.add_argument("--ranks", type=int, default=64, help="for --predict")
    options = parser.parse_args()
    if options.predict:
        predict_all(options.predict, options.ranks)
        return
    pairs: dict[tuple[int, ...], tuple[float, float]] = {}
    with on_hosts() as place:
        table = Table("grid", "predicted s", "observed s", "observed over predicted", shown=place.rank == 0)
        for grid in load_strategy("plexus").grids(place.world):
            trainer = trainer_of(spec_of(request(options.dataset, grid, place.world, "ethernet")))
            predicted = forecast(trainer.strategy).seconds.value
            for turns in train_in_turns([trainer], options.epochs):
                observed = turns.median()
                pairs[tuple(grid.values())] = predicted, observed
                numbers = f"{predicted:.3f}", f"{observed:.3f}", f"{observed / predicted:.2f}"
                table.row(format_grid(grid, " "), *numbers)
    if pairs:
        predictions, observations = zip(*pairs.values(), strict=True)
        rank = spearmanr(predictions, observations).statistic
        grids = f"{len(pairs)} grids of {place.world} ranks on {options.dataset}"
        print(f"\n{grids}, rank correlation {rank:.3f}")
        keep(lambda: drawn(pairs), f"plexus-figure-5-{place.world}", options.dataset)


def drawn(pairs: dict[tuple[int, ...], tuple[float, float]]) -> Figure:
    """A point for each grid, by the number of its axes that have more than one rank; the line is equality."""
    figure = Figure(figsize=(3.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for (dimensions, name), colour, marker in zip(DIMENSIONS.items(), COLOURS, "so^", strict=False):
        some = [pair for grid, pair in pairs.items() if sum(size > 1 for size in grid) == dimensions]
        if some:
            predicted, observed = zip(*some, strict=True)
            label = f"{name} grids"
            axes.plot(observed, predicted, linestyle="none", label=label, color=colour, marker=marker)
    most = 1.05 * max(max(pair) for pair in pairs.values())
    axes.plot([0, most], [0, most], color="0.6", linewidth=0.8)
    axes.set_xlim(0, most)
    axes.set_ylim(0, most)
    axes.set_xlabel("observed time of an epoch (s)")
    axes.set_ylabel("predicted (s)")
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
