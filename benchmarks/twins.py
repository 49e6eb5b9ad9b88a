"""How close twins with communities are to the graphs that their communities were fitted to."""

from statistics import fmean
from typing import NamedTuple

import numpy as np

from benchmarks.graphs import load_matrix, measure_cut
from benchmarks.registry import Results, Table, benchmark
from harness.graph.generators.communities import Communities
from harness.graph.generators.community_counts import estimate_rows, find_skew, fit_to_rows
from harness.graph.sources.source import draw_edges
from harness.kernels import Csr
from harness.kernels.csr import from_scipy

GRAPHS = ("coauthor-cs", "cora", "citeseer", "tolokers", "bcspwr10")
TARGET = 1.25
"""The factor within which a twin's rows are close enough."""

CORRECTIONS = 2
"""How often the fitted rows are corrected by what METIS finds in the twins."""


class Rows(NamedTuple):
    """The rows of others that parts by METIS need."""

    total: float
    """Of all parts."""
    imbalance: float
    """Of the part that needs the most, over the mean."""


@benchmark
def boundaries(
    graphs: tuple[str, ...] = GRAPHS,
    parts: tuple[int, ...] = (4, 8, 16, 32, 64),
    fitted: tuple[int, ...] = (4, 64),
    seeds: int = 3,
) -> Results:
    """Compare the rows that parts by METIS need of others on a graph and on its twin.

    The skew of the twin comes from the degrees of the graph, and both numbers of its law from the rows at the fitted
    numbers of parts only: first from the rows that the communities are expected to need, then corrected by the rows
    that parts by METIS of these twins need. The other numbers are held out. `expected` are the rows that are computed
    without drawing a graph and without METIS. Rows are per vertex.

    tolokers and bcspwr10 are imported: `harness data import tolokers --edges FILE` with the edges of
    tolokers.npz (github.com/yandex-research/heterophilous-graphs), `--from suitesparse:HB/bcspwr10`. The others are
    fetched.

    Args:
        parts: numbers of parts
        fitted: the numbers of parts whose rows the law is fitted to
        seeds: twins that are drawn, of which the mean is shown
    """
    yield Table(
        *("graph", "parts", "fitted", "rows:.3f", "twin's:.3f", "ratio:.2f", "expected:.3f"),
        *("most to mean:.2f", "twin's:.2f"),
    )
    laws, errors = [], []
    for graph in graphs:
        A = load_matrix(graph)
        n, edges = A.rows, (A.nnz - A.rows) // 2
        real = {number: measure_rows(A, number) for number in parts}
        skew = find_skew(np.diff(A.rowptr.numpy()) - 1)
        targets = {number: real[number].total for number in fitted}
        for _ in range(1 + CORRECTIONS):
            law = fit_to_rows(n, edges, skew, targets)
            twins = [Communities(n, edges, seed, law=law) for seed in range(seeds)]
            drawn = {number: measure_all(twins, number) for number in parts}
            targets = {
                number: targets[number] * real[number].total / drawn[number].total for number in fitted
            }
        laws.append((graph, n, edges, law.skew, law.across, law.growth))
        for number in parts:
            rows, expected = drawn[number].total, estimate_rows(twins[0], number)
            ratio = rows / real[number].total
            yield (
                *(graph, number, "yes" if number in fitted else "held out", real[number].total / n, rows / n),
                *(ratio, expected / n, real[number].imbalance, drawn[number].imbalance),
            )
            if number not in fitted:
                errors.append(max(ratio, 1 / ratio))
    close = sum(error <= TARGET for error in errors)
    yield f"Of {len(errors)} numbers held out, {close} are within {TARGET:g}; the largest factor is {max(errors):.2f}."
    yield Table("graph", "vertices:,", "edges:,", "skew:.2f", "across:.4f", "growth:.3f", title="Fitted laws")
    yield from laws


def measure_all(twins: list[Communities], parts: int) -> Rows:
    """Return the mean over twins."""
    measured = [measure_rows(make_matrix(twin), parts) for twin in twins]
    return Rows(fmean(each.total for each in measured), fmean(each.imbalance for each in measured))


def make_matrix(graph: Communities) -> Csr:
    """Return the adjacency of a drawn graph, with loops."""
    from scipy.sparse import coo_array, eye_array

    source, target, *_ = draw_edges(graph, range(graph.draws))
    pattern = coo_array((np.ones(len(source)), (source, target)), shape=(graph.n, graph.n)).tocsr()
    return from_scipy((pattern + pattern.T + eye_array(graph.n)).tocsr())


def measure_rows(A: Csr, parts: int) -> Rows:
    """Return the rows that parts by METIS need."""
    cut = measure_cut(A, "metis", parts)
    return Rows(cut.total, cut.most * parts / cut.total)
