"""The fastest way is the one that does least; where nothing can be measured it is the first."""

import time

import torch

from harness.kernels.recorded import TURNS, WARM, autotune


def test_the_one_that_waits_loses() -> None:
    calls = {"slow": 0, "quick": 0}

    def slow() -> None:
        calls["slow"] += 1
        time.sleep(0.01)

    def quick() -> None:
        calls["quick"] += 1

    assert autotune({"slow": slow, "quick": quick}, torch.device("cpu")) == "quick"
    assert set(calls.values()) == {WARM + TURNS}


def test_shapes_are_not_measured() -> None:
    assert autotune({"first": lambda: 1 / 0, "second": lambda: 1 / 0}, torch.device("meta")) == "first"
