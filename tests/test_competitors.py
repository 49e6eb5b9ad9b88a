"""Competitors outside of the harness: their turns, their processes, and the checks of their results."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import competitors, turns
from benchmarks.competitors import OURS, check_draws, check_product, drop_loops, show
from benchmarks.mkl import INSTALL, load_mkl
from benchmarks.registry import Results, Table
from benchmarks.turns import Time, take_turns
from benchmarks.worker import Worker
from harness.base.errors import UserError
from harness.conformance.case import make_check_graph
from harness.kernels.csr import cast, to_scipy

ECHO = """
import json, sys
import numpy as np
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "turn":
        print(json.dumps([asked["repeat"], 2]), flush=True)
    elif asked["do"] == "result":
        np.save(asked["file"], np.arange(3))
        print("null", flush=True)
    else:
        sys.exit(5)
"""


def test_competitors_take_turns_in_both_orders_and_short_calls_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "PAUSE", 0)
    called: list[tuple[str, int]] = []

    def time(name: str, seconds: float, repeat: int) -> Time:
        called.append((name, repeat))
        return Time(seconds, seconds / 2)

    taken = take_turns({"short": partial(time, "short", 0.003), "long": partial(time, "long", 3.0)}, 3)
    assert called[:4] == [("short", 1), ("short", 1), ("long", 1), ("long", 1)]
    assert [name for name, _ in called[4:]] == ["short", "long", "long", "short", "short", "long"]
    assert {repeat for name, repeat in called[4:] if name == "short"} == {7}  # 21 ms
    assert taken["long"] == [Time(3.0, 1.5)] * 3


def test_ratios_are_of_pairs_and_have_an_interval() -> None:
    ours = [Time(wall, 1.0) for wall in (1.0, 2.0, 4.0, 1.0, 2.0, 4.0)]
    theirs = [Time(3 * wall, 0.5) for wall, _ in ours]
    (cells,) = show({OURS: ours, "theirs": theirs})
    assert cells == ("theirs", 2000, 1000, 6000, 500, 3, "3.00 to 3.00", 0.5, "0.50 to 0.50")


def test_a_worker_answers_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "echo.py"
    file.write_text(ECHO)
    with Worker(sys.executable, str(file)) as worker:
        assert worker.time("any", 4) == Time(4, 2)
        assert worker.result("any", tmp_path).tolist() == [0, 1, 2]
        with pytest.raises(UserError, match="ended with code 5"):
            worker.ask("stop")


def test_a_wrong_product_is_refused() -> None:
    A = cast(make_check_graph(97).A, torch.float32)
    H = torch.rand(97, 4)
    Z = torch.from_numpy(to_scipy(A) @ H.numpy())
    check_product("right", A, H, Z)
    Z[3, 1] *= 1 + 1e-3
    with pytest.raises(AssertionError, match="wrong"):
        check_product("wrong", A, H, Z)


def test_samples_that_shrink_are_refused() -> None:
    ours = torch.tensor([[10, 60], [9, 58]])
    check_draws("close", ours, np.array([[10, 59], [9, 60]]))
    with pytest.raises(AssertionError, match="inputs"):
        check_draws("shrunk", ours, np.array([[10, 60], [9, 40]]))
    with pytest.raises(AssertionError, match="entries"):
        check_draws("too few entries", ours, np.array([[10, 59], [8, 60]]))


def test_dropped_loops_are_the_diagonal() -> None:
    A = make_check_graph(97).A
    expected = to_scipy(A).toarray()
    np.fill_diagonal(expected, 0)
    assert (to_scipy(drop_loops(A)).toarray() == expected).all()
    assert drop_loops(A).nnz == np.count_nonzero(expected)


@pytest.mark.parametrize(
    "run", [competitors.products, competitors.epochs, competitors.mini_batches], ids=lambda run: run.__name__
)
def test_missing_package_skips_with_an_install_command(
    run: Callable[[], Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competitors, "load_mkl", lambda: None)
    monkeypatch.delenv("DGL_PYTHON", raising=False)
    (text,) = run()
    assert not isinstance(text, Table) and "make dgl" in str(text)
    assert (INSTALL in str(text)) == (run is competitors.products)


@pytest.mark.skipif(load_mkl() is None, reason="needs MKL: set MKL_RT")
@pytest.mark.parametrize("optimise", [False, True])
def test_products_of_mkl_equal_scipys(optimise: bool) -> None:
    mkl = load_mkl()
    assert mkl
    A, H, Z = cast(make_check_graph(97).A, torch.float32), torch.rand(97, 5), torch.empty(97, 5)
    mkl.prepare_product(A, H, Z, 1, optimise=optimise)()
    check_product("MKL", A, H, Z)
