"""Tests the GPUs of this machine.

Compares every GPU's kernels, the sums over all GPUs and a small training with float64 on the host.
"""

import torch

from harness.base.errors import RunError
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.conformance.case import make_check_graph
from harness.conformance.suite import ON_GPUS, check_smallest
from harness.kernels import cast, to_device, to_scipy, transpose
from harness.kernels.random import Purpose, random_mask, uniform_rectangle
from harness.kernels.spmm import aggregate, multiply_library_blocked
from harness.ledger import AxisName, Ledger, TensorName
from harness.runtime.launch.worker_pool import Pool

TESTED, PATIENCE = 1009, 60.0
"""The number of vertices of the test graph, and the time limit of each part of the test in seconds."""
ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-10}
"""The largest deviation of a kernel's result, relative to the largest number."""


def find_gpu_faults(gpus: int) -> list[str]:
    """Return descriptions of the faults of this machine's GPUs. The test takes about a minute."""
    with Pool(engine=Engine.NCCL, patience=PATIENCE) as pool:
        try:
            wrong = [words for words_of_rank in pool.run(gpus, find_local_faults) for words in words_of_rank]
            if not wrong:  # with faulty kernels a training would fail, too
                findings = check_smallest("cagnet-1d", pool.run, gpus, ON_GPUS)
                wrong = [
                    f"a small training: {each.check}: {each.detail}" for each in findings if not each.holds
                ]
        except RunError as error:
            wrong = [str(error).partition("\n")[0]]
    return wrong


def find_local_faults() -> list[str]:
    """Return the faults in the kernels of this rank's GPU, and in the sums over the GPUs of all ranks."""
    device, ranks = engine.select_device(Engine.NCCL, engine.rank()), engine.world_size()
    axis = Grid.build({AxisName.P: ranks}, Ledger(recording=False), device)[AxisName.P]
    A, rows = make_check_graph(TESTED).A, torch.arange(TESTED)
    H, G = (uniform_rectangle(seed, Purpose.TEST, range(TESTED), range(80), 80) - 0.5 for seed in (0, 1))
    wrong = []
    for dtype, allowed in ALLOWED.items():
        mine, A_here = H.to(dtype), cast(A, dtype)
        on_gpu = mine.to(device).requires_grad_()
        A_on_gpu = to_device(A_here, device)
        Z = aggregate(A_on_gpu, to_device(transpose(A_here), device), on_gpu)
        Z.backward(G.to(device, dtype))
        summed = on_gpu.detach() * (engine.rank() + 1)
        summed = axis.all_reduce(summed, tensor=TensorName.H)
        dense, exact = torch.from_numpy(to_scipy(cast(A_here, torch.float64)).toarray()), mine.double()
        pairs = {
            "sparse product": (Z, dense @ exact),
            "sparse product in blocks": (
                multiply_library_blocked(A_on_gpu, on_gpu.detach(), None),
                dense @ exact,
            ),
            "gradient of a sparse product": (on_gpu.grad, dense.T @ G.to(dtype).double()),
            "dense product": (on_gpu.T @ on_gpu, exact.T @ exact),
            f"sum over {ranks} GPUs": (summed, exact * (ranks * (ranks + 1) // 2)),
        }
        for what, (result, expected) in pairs.items():
            assert result is not None
            error = float((result.detach().cpu().double() - expected).abs().max() / expected.abs().max())
            if not error <= allowed:
                off = f"differs from float64 by {error:.1e} of the largest number; {allowed:.0e} is allowed"
                wrong.append(f"{what} in {str(dtype).removeprefix('torch.')}: {off}")
    masks = [random_mask(0, Purpose.DROPOUT, x, range(3, 40), 1 << 15) for x in (rows, rows.to(device))]
    if not torch.equal(masks[0], masks[1].cpu()):
        wrong.append("dropout mask: its bits differ from those of the host")
    return [f"GPU {engine.rank()}: {words}" for words in wrong]
