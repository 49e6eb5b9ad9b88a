"""Predictions from twins, held against the same graph when it is built."""

from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.experiment.requests import make_spec, nest_settings
from harness.prediction.epoch import predict
from harness.prediction.twins import fit_growth, predict_from_twins
from harness.registry import load_strategy
from harness.runtime.open_run import open_run
from harness.spec.machine_card import load_machine_card
from harness.strategy import Ready

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PERLMUTTER = load_machine_card(ROOT, "perlmutter")
TWINS, GRAPH = ("1/2048w8", "1/1024w8", "1/512w8"), "1/128w8"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a graph like ogbn-products: small twins of a cut have fewer communities than large ones."""
    folder = tmp_path_factory.mktemp("project")
    card, machine = "datasets/catalog/ogbn-products.yaml", "config/machines/local.yaml"
    for name, text in (
        (card, (ROOT / card).read_text().split("communities:")[0]),
        (machine, (ROOT / machine).read_text()),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return folder


def on(root: Path, scale: str, name: str, **settings: Any) -> Ready:
    """A strategy on four ranks and a twin of ogbn-products without communities."""
    strategy = load_strategy(name)
    asked = {
        "strategy.name": name,
        "dataset.name": f"ogbn-products@{scale}",
        "ranks": 4,
        "grid": strategy.grids(4)[0],
        "training.batch": 32 if strategy.mini_batches else 0,
    }
    return Ready(*open_run(root, make_spec(root, nest_settings({**asked, **settings}), "test")))


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("bns-gcn", 1.01),
        ("neutronstar", 1.03),
        ("cagnet-sa-1d", 1.01),
        ("distdgl", 1.2),
        pytest.param("salient", 1.45, marks=pytest.mark.slow),
    ],
)
def test_a_graph_is_predicted_from_twins_of_a_quarter_of_it_and_less(
    name: str, within: float, root: Path
) -> None:
    """Rows of a part grow with the graph. The rows that samples share are further off, and so is the time for them."""
    graph = on(root, GRAPH, name)
    counted = predict(graph, PERLMUTTER)
    predicted = predict_from_twins(graph.strategy, PERLMUTTER, [on(root, scale, name) for scale in TWINS])
    ratio = predicted.elements_received / counted.elements_received
    assert 1 / within < ratio < within
    assert predicted.seconds.low < counted.seconds.value < predicted.seconds.high
    error = max(0.1, abs(ratio - 1))
    assert predicted.seconds.value == pytest.approx(counted.seconds.value, rel=error)
    assert sum(predicted.entries.values()) == pytest.approx(predicted.seconds.value)


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0])
def test_powers_are_continued_whatever_the_scales(exponent: float) -> None:
    vertices = [100, 300, 2000, 70_000]
    for is_slowing in (True, False):
        law = fit_growth(vertices, is_slowing=is_slowing)
        assert law([5 * n**exponent for n in vertices[:3]]) == pytest.approx(5 * vertices[3] ** exponent)


def test_a_size_that_nears_its_limit_is_continued_with_its_bend() -> None:
    vertices = [1000, 2000, 4000, 64_000]
    sizes = [500 * n / (n + 500) for n in vertices]
    bent, straight = (fit_growth(vertices, is_slowing=is_slowing)(sizes[:3]) for is_slowing in (True, False))
    assert bent == pytest.approx(sizes[3], rel=0.03)
    assert straight > 1.2 * sizes[3]


@pytest.mark.parametrize("sizes", [[0, 0, 7], [3, 2, 7], [7, 7, 7], [9, 8, 7]])
def test_sizes_neither_shrink_nor_outgrow_the_graph(sizes: list[float]) -> None:
    for is_slowing in (True, False):
        assert 7 <= fit_growth([10, 20, 40, 80], is_slowing=is_slowing)(sizes) <= 14


@pytest.mark.parametrize(
    ("name", "settings", "scales", "message"),
    [
        ("bns-gcn", {}, ("1/2048w8", "1/1024w8", "1/512w4"), "products@1-512w4"),
        ("distdgl", {"training.batch": 400}, TWINS, "400 on 4 ranks"),
        ("bns-gcn", {}, ("1/1024w8", "2/2048w8", "1/512w8"), "vertices"),
        ("g3", {}, TWINS, "larger twin"),
    ],
)
def test_twins_that_tell_nothing_are_refused(
    name: str, settings: dict[str, Any], scales: tuple[str, ...], message: str, root: Path
) -> None:
    graph = on(root, GRAPH, name, **settings)
    twins = [on(root, scale, name, **settings) for scale in scales]
    with pytest.raises(UserError, match=message):
        predict_from_twins(graph.strategy, PERLMUTTER, twins)
