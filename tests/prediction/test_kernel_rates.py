"""Rates that are fitted to the times of an NVIDIA H200, and times that measure the host instead of its GPU."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.ledger.tape import ProductShape
from harness.prediction.calibration import stopwatch
from harness.prediction.calibration.kernel_rates import fit_dense_rate, fit_memory_rate
from harness.prediction.calibration.measurements import Calibrator, KernelTime
from harness.prediction.calibration.spmm_rates import fit_gpu_spmm, label_products
from harness.prediction.calibration.stopwatch import CallTime, time_work
from harness.prediction.pricing import price_spmm
from harness.spec.machine_card import Machine, SpmmTerms

GB, CACHE_MB = 1 << 30, 60
LAUNCH, STEP = 2e-6, 60.17e-6
"""The seconds of a small kernel on a GPU, and of a training step on a tiny graph, divided by its kernels."""
MARGIN = 1.05
"""How much faster than the fastest measured kernel a rate may be, for the launch in the time of the kernel."""


def read_times() -> list[KernelTime]:
    """Return the recorded times of the H200."""
    lines = (Path(__file__).parent / "h200_times.csv").read_text().splitlines()
    found = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        product = None
        if row["rows"]:
            sizes = (int(row[name]) for name in ("rows", "inner", "columns", "nonzeros"))
            product = ProductShape(*sizes, row["values"], row["indices"])
        found.append(KernelTime(row["kernel"], float(row["seconds"]), product, int(row["bytes"] or 0)))
    return found


TIMES = read_times()
STREAMS = [each for each in TIMES if each.bytes]
SPARSE = [each for each in TIMES if each.kernel == "sparse"]


def dense(values: str) -> list[KernelTime]:
    return [
        each for each in TIMES if each.kernel == "dense" and each.product and each.product.values == values
    ]


def fit_rates(launch: float) -> Iterator[tuple[str, float, float]]:
    """Yield the name and the value of each rate of the H200, and the rate of the fastest kernel with its launch."""
    memory, _ = fit_memory_rate(STREAMS, launch)
    yield "memory_gbs", memory, max(each.bytes / each.seconds / GB for each in STREAMS)
    for values in ("float32", "bfloat16"):
        reached = [
            2e-12 * each.product.rows * each.product.inner * each.product.columns / each.seconds
            for each in dense(values)
            if each.product
        ]
        yield values, fit_dense_rate(dense(values), launch, memory * GB)[0], max(reached)


def test_no_rate_exceeds_what_a_kernel_reached() -> None:
    """Judge: products of 8192^3 on the same GPU, which reached 51.2 and 829.6 TFLOP/s."""
    rates = {name: value for name, value, _ in fit_rates(LAUNCH)}
    assert 3900 < rates["memory_gbs"] < 4000
    assert 45 < rates["float32"] < 51.2 and 700 < rates["bfloat16"] < 829.6
    assert all(value <= MARGIN * reached for _, value, reached in fit_rates(LAUNCH))


def test_time_of_a_host_as_launch_makes_rates_impossible() -> None:
    """A launch that includes the host is subtracted from kernels that do not wait for it."""
    broken = {name for name, value, reached in fit_rates(STEP) if value > MARGIN * reached}
    assert broken == {"memory_gbs", "float32", "bfloat16"}


def test_sparse_terms_price_large_products_within_their_interval() -> None:
    """The host took as long to issue any product as the shortest one."""
    issue = min(each.seconds for each in SPARSE)
    timed = [each._replace(issue=issue) for each in SPARSE]
    measured = label_products([each for each in timed if not each.is_bound_by_host])
    assert 100 < len(measured) < len(SPARSE)
    terms = SpmmTerms(**fit_gpu_spmm(measured, CACHE_MB, LAUNCH), source="fitted")
    large = [
        (LAUNCH + price_spmm(each.product, terms)) / each.seconds
        for each in measured
        if each.product.values == "float32" and each.product.columns > 64
    ]
    inside = [1 / terms.within < ratio < terms.within for ratio in large]
    assert terms.within < 2 and sum(inside) >= 0.9 * len(large) > 20


class SlowGpu:
    """A GPU that executes a call in `work` seconds, after a host that issues it in `issue` seconds. Nobody waits."""

    def __init__(self, issue: float, work: float) -> None:
        self._issue, self._work, self._now, self._busy_until = issue, work, 0.0, 0.0

    def call(self) -> None:
        self._now += self._issue
        self._busy_until = max(self._now, self._busy_until) + self._work

    def synchronize(self, _: torch.device) -> None:
        self._now = max(self._now, self._busy_until)

    def perf_counter(self) -> float:
        return self._now


@pytest.fixture
def time_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[SlowGpu], CallTime]:
    """Return a function that times the calls of a GPU by its clock."""

    def time_on_gpu(gpu: SlowGpu) -> CallTime:
        monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=gpu.perf_counter))
        monkeypatch.setattr(stopwatch, "synchronize", gpu.synchronize)
        return time_work(gpu.call, torch.device("cuda"))

    return time_on_gpu


def test_calls_that_wait_for_the_host_are_bound_by_it(time_on: Callable[[SlowGpu], CallTime]) -> None:
    slow, fast = time_on(SlowGpu(issue=1e-5, work=4e-5)), time_on(SlowGpu(issue=4e-5, work=1e-5))
    assert slow == pytest.approx((4e-5, 1e-5), rel=0.02)
    assert fast == pytest.approx((4e-5, 4e-5), rel=0.02), "the same time, but of the host"
    calibrator = Calibrator(Machine(name="h200", device="cuda"), torch.device("cuda"), "measured")
    times = [KernelTime("relu", each.seconds, issue=each.issue) for each in (slow, fast)]
    assert calibrator.leave_out_bound_by_host("kernels", times) == times[:1]
    assert calibrator.notes == ["1 of 2 kernels left out: the host takes as long to issue them"]


def test_calls_on_a_cpu_are_never_bound_by_the_host() -> None:
    taken = time_work(lambda: None, torch.device("cpu"))
    assert taken.issue == 0
    assert not KernelTime("add", taken.seconds, issue=taken.issue).is_bound_by_host
