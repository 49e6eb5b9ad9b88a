"""A twin is a dataset like any other, has the published nonzeros, and cards that cannot have one say why."""

import re
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.graph.cards.catalog import list_cards, load_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.generators.communities import Communities
from harness.graph.generators.community_counts import estimate_rows
from harness.graph.generators.distinct_draws import MAX_COUNTED_EDGES
from harness.graph.generators.twin import PowerLawTwin, RoadTwin
from harness.graph.store.building import build_store
from harness.graph.store.contents import get_generator, load_graph
from harness.graph.store.datasets import open_dataset
from harness.graph.store.info import describe_dataset
from harness.spec.dataset import DatasetChoice, strip_width

ROOT = Path(__file__).parents[2]
CARDS = [name for name in list_cards(ROOT) if load_card(ROOT, name).nature]
PUBLISHED = {
    "source": {"kind": "edges", "path": "nowhere.txt"},
    "features": {"kind": "file"},
    "labels": {"kind": "file"},
    "split": {"kind": "file"},
    "classes": 9,
    "expected": {"n": 32_000, "stored": 320_000, "features": 10},
}
NONZEROS = {
    "reddit": 114_848_857,
    "ogbn-products": 126_167_053,
    "isolate-3-8m": 1_317_986_044,
    "products-14m": 245_036_907,
    "europe-osm": 159_021_338,
    "ogbn-papers100m": 1_726_745_828,
    "cagnet-amazon": 230_788_269,
    "cagnet-protein": 2_116_240_124,
    "graphsaint-amazon": 264_339_468,
    "twitter-2010": 2_405_000_000,
}
"""Plexus' table 4 (with loops); CAGNET, PyTorch Geometric, and G3 (without)."""


@pytest.mark.parametrize("name", NONZEROS)
def test_a_twin_of_full_size_is_to_have_the_published_nonzeros(name):
    card = load_card(ROOT, f"{name}@1")
    with_loops = NONZEROS[name] in {card.expected.nnz_adj, card.expected.nnz_adj + 1}
    assert with_loops or card.expected.nnz_adj - card.expected.n == pytest.approx(NONZEROS[name], rel=1e-5)
    assert card.expected.n == load_card(ROOT, name).expected.n


@pytest.mark.parametrize("vertices", [600, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CARDS)
def test_every_twin_has_them_at_a_small_scale(name, vertices):
    """Exactly, where draws are counted; their number is that of the published graph, times the scale."""
    published = load_card(ROOT, name)
    parts = published.expected.n // vertices
    card = load_card(ROOT, f"{name}@1/{parts}w1")
    found = load_graph(card, ROOT).counts.nnz_adj
    assert found == pytest.approx(
        card.expected.nnz_adj, rel=0 if card.source.edges <= MAX_COUNTED_EDGES else 0.005
    )
    ends = 1 if published.directed else 2
    assert found == pytest.approx((ends * published.edges + published.expected.n) / parts, rel=0.005)


@pytest.mark.parametrize("scale", ["1", pytest.param("1/8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CARDS)
def test_every_twin_expects_them_at_a_large_scale(name, scale):
    """Judge: the integral over ranks and clusters of the chance that an edge is among the draws."""
    card = load_card(ROOT, f"{name}@{scale}")
    generator = get_generator(card)
    count = {RoadTwin: lambda twin: twin.draws, Communities: count_in_communities}.get(
        type(generator), different
    )
    edges = count(generator)
    assert edges == pytest.approx(card.source.edges, rel=0.004)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ogbn-products@1/8w1", "reddit@1/16w1", "ogbn-papers100m@1/128w1"])
def test_every_twin_has_them_at_a_large_scale(name):
    card = load_card(ROOT, name)
    assert load_graph(card, ROOT).counts.nnz_adj == pytest.approx(card.expected.nnz_adj, rel=0.005)


def different(twin):
    """The edges that are expected of the draws of a twin: bins of ranks, then clusters, whose ranks are as one."""
    n, m, size, anywhere = twin.n, twin.draws, twin.cluster, 1 - twin.within
    below = np.unique(np.concatenate([np.arange(300), np.geomspace(300, n, 1500)]).astype(np.int64))
    sizes, chances = np.diff(below), np.diff(np.sqrt(below / n))
    ranks = chances / sizes
    both = 1 if twin.directed else 2

    def found(mean):
        return -np.expm1(-m * mean)

    everywhere = sizes @ found(both * anywhere * np.outer(ranks, ranks)) @ sizes
    own = sizes @ found(both * anywhere * ranks**2)
    total = (everywhere - own) / both
    if not twin.within:
        return total
    few = min(size * 4, n - n % size)
    u, v = np.triu_indices(few, 1)
    u, v = (np.concatenate([u, v]), np.concatenate([v, u])) if twin.directed else (u, v)
    near = u // size == v // size
    p = np.diff(np.sqrt(np.arange(few + 1) / n))
    p_u, p_v = p[u[near]], p[v[near]]
    wide = both * anywhere * p_u * p_v
    total += (found(wide + twin.within * (p_u + (p_v if both == 2 else 0)) / size) - found(wide)).sum()
    corners = np.append(np.arange(few, n, size), n)
    members = np.diff(corners)
    p = np.diff(np.sqrt(corners / n)) / members
    wide = both * anywhere * p**2
    pairs = members * (members - 1) / both
    return total + pairs @ (found(wide + both * twin.within * p / members) - found(wide))


def count_in_communities(twin):
    """The edges that are expected of the draws of an undirected twin. A community has a vertex of each block.

    For each division, the pairs are those between both halves of the communities; then those inside the smallest.
    """
    total, shares = 0.0, np.diff(twin.cuts, prepend=0, append=1)
    for division, share in enumerate(shares):
        is_inside = division == twin.divisions
        blocks = twin.n >> (division if is_inside else division + 1)
        bins = np.unique(np.concatenate([np.arange(300), np.geomspace(300, blocks, 1500)]).astype(np.int64))
        bins = np.append(bins[bins < blocks], blocks)
        sizes = np.diff(bins)
        mass = np.diff((bins / blocks) ** (1 / twin.law.skew)) / sizes
        chance = (2 if is_inside else 1) * share * np.outer(mass, mass) / 2**division
        pairs = np.outer(sizes, sizes) - (np.diag(sizes) if is_inside else 0)
        total += 2**division * (pairs * -np.expm1(-twin.draws * chance)).sum() / (2 if is_inside else 1)
    return total


@pytest.mark.parametrize("nature", ["power", "clusters", "lattice"])
@pytest.mark.parametrize(("scale", "share"), [("1", 1), ("1/16", 1 / 16), ("1-16", 1 / 16), ("3/4", 0.75)])
def test_a_twin_has_its_share(root, write_card, nature, scale, share):
    degree = 20 if nature != "lattice" else 2.2
    expected = {"n": 32_000, "stored": round(16_000 * degree), "features": 10}
    write_card(root, "big", **{**PUBLISHED, "expected": expected}, nature=nature)
    choice = DatasetChoice(name=f"big@{scale}")
    store = open_dataset(root, choice)
    assert store.n == round(32_000 * share)
    assert store.nnz / store.n == pytest.approx(1 + degree, rel=0.002)
    assert (store.features, store.classes) == (10, 9)
    assert choice.name == f"big@{scale.replace('/', '-')}"


def test_a_twin_that_misses_its_nonzeros_is_refused(root, write_card, monkeypatch):
    """As a fetched graph is: one draw an edge loses a third of them."""
    write_card(root, "big", **PUBLISHED, nature="clusters")
    choice = DatasetChoice(name="big@1/64")
    expected = load_card(root, choice.name).expected.nnz_adj
    with monkeypatch.context() as patch:
        patch.setattr(PowerLawTwin, "draws", property(lambda twin: twin.distinct))
        with pytest.raises(UserError, match=rf"nnz_adj .* {expected:,} .*1\.000%"):
            build_store(root, choice)
    build_store(root, choice)


def test_info_says_what_is_expected_drawn_and_built(root, write_card):
    write_card(root, "big", **PUBLISHED, nature="clusters")
    choice = DatasetChoice(name="big@1/64")
    before = describe_dataset(root, choice)
    assert before.expected_nonzeros == 2 * 5000 + 500
    assert before.draws > 5000
    build_store(root, choice)
    after = describe_dataset(root, choice)
    assert (after.expected_nonzeros, after.draws) == (before.expected_nonzeros, before.draws)
    assert after.nonzeros == before.expected_nonzeros


def test_another_number_of_edges_is_another_store(root, write_card):
    folders = set()
    for stored in (320_000, 330_000):
        expected = {**PUBLISHED["expected"], "stored": stored}
        write_card(root, "big", **{**PUBLISHED, "expected": expected}, nature="power")
        folders.add(build_store(root, DatasetChoice(name="big@1/64")))
    assert len(folders) == 2


@pytest.mark.parametrize(("name", "scale"), [("reddit", "1/1000"), ("ogbn-products", "1/100000")])
def test_too_few_vertices_for_the_edges_are_refused_with_the_smallest_twin(name, scale):
    with pytest.raises(UserError) as caught:
        load_card(ROOT, f"{name}@{scale}")
    smallest = load_card(ROOT, f"{name}@{str(caught.value).split('@')[-1].rstrip('.')}w1")
    assert load_graph(smallest, ROOT).counts.nnz_adj == smallest.expected.nnz_adj


def test_a_source_and_its_card_go_the_same_ways():
    card = load_card(ROOT, "ogbn-papers100m@1/4096").model_dump()
    with pytest.raises(ValueError, match="directed must be equal"):
        DatasetCard.model_validate({**card, "directed": False})


def test_two_spellings_are_one_dataset(root, write_card):
    write_card(root, "big", **PUBLISHED, nature="power")
    folders = {build_store(root, DatasetChoice(name=f"big@{scale}")) for scale in ("1/64", "1-64")}
    assert len(folders) == 1
    assert "big@1-64" in folders.pop().name


def test_features_of_another_width_are_on_the_same_graph(root, write_card):
    write_card(root, "big", **PUBLISHED, nature="power")
    narrow, wide = (open_dataset(root, DatasetChoice(name=f"big@1/64{width}")) for width in ("", "w33"))
    assert (narrow.features, wide.features) == (10, 33)
    everyone = range(narrow.n)
    for one, other in zip(
        *(store.adjacency(everyone, everyone)[:3] for store in (narrow, wide)), strict=True
    ):
        assert one.equal(other)
    assert strip_width("big@1-64w33") == strip_width("big@1-64") == "big@1-64"
    assert strip_width("bigw33") == "bigw33"


@pytest.mark.parametrize("scale", ["", "1w0", "w16", "0", "2", "1/0", "3/2", "a", "1/2/3", "-1"])
def test_a_scale_is_a_share(root, write_card, scale):
    write_card(root, "big", **PUBLISHED, nature="power")
    with pytest.raises(UserError, match=rf"big@{re.escape(scale)}"):
        load_card(root, f"big@{scale}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nature": "lattice"}, "nature"),
        ({"expected": {"n": 9}}, r"nature, expected\.nnz_adj, expected\.features"),
    ],
)
def test_a_card_without_the_nature_of_a_twin_has_none(root, write_card, changes, said):
    write_card(root, "big", **{**PUBLISHED, **changes})
    with pytest.raises(UserError, match=said):
        load_card(root, "big@1")


COMMUNITIES = [name for name in CARDS if load_card(ROOT, name).communities]


@pytest.mark.parametrize("name", COMMUNITIES)
def test_twins_with_communities_need_the_published_rows(name):
    """Computed for a twin of a hundredth of the size and more, and scaled up."""
    card = load_card(ROOT, name)
    parts = card.expected.n // 100_000
    twin = get_generator(load_card(ROOT, f"{name}@1/{parts}w1"))
    for published in card.communities.published:
        rows = estimate_rows(twin, published.parts) * card.expected.n / twin.n
        assert rows == pytest.approx(published.rows, rel=0.03)


def test_a_twin_with_communities_is_drawn_by_the_law_of_its_card(root, write_card):
    published = {
        "law": {"across": 0.01, "growth": 1.2},
        "published": [{"parts": 8, "rows": 20_000, "source": "somewhere"}],
    }
    write_card(root, "big", **PUBLISHED, nature="clusters", communities=published)
    write_card(root, "plain", **PUBLISHED, nature="clusters")
    card = load_card(root, "big@1/4")
    assert (card.source.kind, card.source.law.across, card.source.n) == ("communities", 0.01, 8000)
    assert "communities" in card.description
    assert load_card(root, "plain@1/4").source.kind == "twin"
    fields = load_card(root, "big").dump_data_fields()
    assert fields == {
        **load_card(root, "plain").dump_data_fields(),
        "name": "big",
    }  # the store of the graph stays
    store = open_dataset(root, DatasetChoice(name="big@1/4", partition="metis", parts=8))
    assert store.nnz == 2 * 80_000 + 8000
