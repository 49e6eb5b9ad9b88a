"""From an empty folder to an answer, by the commands of one section of a page, typed as they stand.

What a journey ends with is judged by something of its own: scipy's product, the numbers beside a figure, a table.
"""

import csv
import json
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

from harness.cli import main
from harness.graph.store.datasets import open_dataset
from harness.kernels import to_scipy
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.strategy import Promise
from tests.conformance.test_examples import CODE
from tests.journeys.test_pages import commands_of, environment, section

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
VERTICES = 60


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    assert main(["new", "project", str(folder)]) == 0
    return folder


def typed(line: str, project: Path, ends: int = 0) -> str:
    """What a command prints; its exit code must be `ends`."""
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", line], cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    print(f"{time.monotonic() - begun:6.1f} s  {line}")
    assert done.returncode == ends, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def weighted_matrix(path: Path) -> sp.csr_array:
    """Writes a symmetric matrix of positive weights without loops."""
    draw = np.random.default_rng(7)
    upper = sp.triu(sp.random(VERTICES, VERTICES, 0.1, random_state=draw), k=1)
    W = sp.csr_array(upper + upper.T)
    scipy.io.mmwrite(path, W, symmetry="symmetric")
    return sp.csr_array(scipy.io.mmread(path))


def test_a_weighted_matrix_is_imported_advised_and_trained_on(project: Path) -> None:
    """Judge: D^-1/2 (W + I) D^-1/2 by scipy; serial training on the same graph."""
    W = weighted_matrix(project / "my-matrix.mtx")
    importing, advising, running = commands_of(section("docs/tutorials/your-graph.md", "With edge weights"))
    typed(importing.line, project)
    looped = W + sp.eye_array(VERTICES)
    scale = sp.diags_array(1 / np.sqrt(looped.sum(axis=1)))
    A = to_scipy(open_dataset(project, DatasetChoice(name="my-matrix")).adjacency(*[range(VERTICES)] * 2))
    np.testing.assert_allclose(A.toarray(), (scale @ looped @ scale).toarray(), rtol=1e-6)

    advice = json.loads(typed(f"{advising.line} --json", project))
    refused = {each["strategy"]: each["reason"] for each in advice["refused"]}
    assert {"cluster-gcn", "graphsaint-node", "bulk-ladies"} <= refused.keys()
    assert all("weight" in refused[name] for name in ("cluster-gcn", "graphsaint-node", "bulk-ladies"))
    advised = [each["strategy"] for each in advice["full_graph"]]
    assert {"cagnet-1d", "cagnet-2d", "plexus", "bns-gcn"} <= set(advised)

    exact = next(name for name in advised if load_strategy(name).promise is Promise.EXACT)
    best = re.sub("cagnet-1d", exact, running.line)
    serial = re.sub("cagnet-1d(.*) --ranks 2", r"serial\1", running.line)
    losses = [json.loads(typed(f"{line} --json", project)) for line in (running.line, best, serial)]
    found = [record["summary"]["final_loss"] for record in losses]
    np.testing.assert_allclose(found, found[-1], rtol=1e-4)


def test_a_new_strategy_goes_from_the_scaffold_to_conforms_and_into_a_figure(project: Path) -> None:
    """The page's finished code takes the place of the skeleton, as an author's would, once the kit has asked for it."""
    page = section("docs/tutorials/add-a-strategy.md", "Add a strategy")
    new, check, *_ = commands_of(page)
    typed(new.line, project)
    assert typed(check.line, project, ends=1).startswith("FAIL ")
    file = project / "my-strategy/my_strategy/strategy.py"
    file.write_text(CODE[0].replace("GatheredRows", "MyStrategy").replace("gathered-rows", "my-strategy"))
    assert typed(check.line, project).startswith("PASS ")
    steps = commands_of(section("docs/tutorials/add-a-strategy.md", "What a strategy answers"))
    runs = [each.line for each in steps if each.line.startswith("harness run ")]
    drawing = next(each.line for each in steps if each.line.startswith("harness collect "))
    for line in (*runs, drawing):
        typed(line, project)
    with (project / "figures/epoch-time.csv").open() as numbers:
        rows = list(csv.DictReader(numbers))
    assert {row["curve"] for row in rows} == {"MyStrategy", "cagnet-1d"}


def test_a_figure_of_a_paper_is_drawn_at_tiny_scale(project: Path) -> None:
    """The folder of the experiment has what the page's table says, and every run of it succeeded."""
    page = section("docs/tutorials/reproduce-a-figure.md", "Reproduce a figure")
    listing, drawing, *_ = commands_of(page)
    assert "plexus-fig8" in typed(listing.line, project)
    typed(drawing.line, project)
    (folder,) = (project / "results/papers/tiny").iterdir()
    runs = pd.read_parquet(folder / "runs.parquet")
    assert len(runs) > 5
    assert set(runs.status[runs.source == "measured"]) == {"ok"}
    claims = pd.read_parquet(folder / "claims.parquet")
    assert "plexus-fig8c" in set(claims.figure)
    drawn = {path.suffix for path in (folder / "figures").glob("[!.]*")}
    assert drawn == {".pdf", ".svg", ".png", ".csv", ".txt"}
    assert "<svg" in (folder / "report.html").read_text()
