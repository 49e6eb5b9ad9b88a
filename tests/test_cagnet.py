"""CAGNET's program as the benchmark sees it: a stand-in script runs as one rank, and its calls are counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cagnet import find_kind, write_arrays
from benchmarks.worker import FOLDER
from tests.slurm.cluster import free_ports

SCRIPT = """
import argparse
import torch
import torch.distributed as dist
from torch_geometric.datasets import Planetoid
from sparse_coo_tensor_cpp import sparse_coo_tensor_gpu, spmm_gpu


def summa(inputs, device):
    block = torch.cuda.FloatTensor(inputs.size(0), 2, device=device).fill_(0)
    dist.broadcast(block, 0, None)
    spmm_gpu(torch.tensor([0]).int(), torch.tensor([1]).int(), torch.tensor([2.0]), 4, 4, inputs, block)
    return block


def train(inputs, device):
    return summa(inputs, device)


def run(inputs, device):
    inputs = inputs.to(device)
    length = torch.cuda.LongTensor([7], device=device)
    dist.broadcast(length, 0, None)
    print(train(inputs, device)[0])


def main():
    data = Planetoid("", "Cora")[0]
    dist.init_process_group(backend='nccl')
    device = torch.device('cuda:{}'.format(dist.get_rank()))
    torch.cuda.set_device(device)
    run(data.x.to(torch.device("cpu")), device)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.parse_args()
    main()
"""


def test_script_for_gpus_runs_on_the_host_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    X = np.arange(8, dtype=np.float32).reshape(4, 2)
    write_arrays(tmp_path, np.array([[0, 1], [1, 2]]), X, np.array([0, 1, 1, 0]))
    command = [sys.executable, FOLDER / "cagnet_worker.py", tmp_path, tmp_path / "script.py", "--epochs", "1"]
    place = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
    }
    done = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "tensor([4., 6.])" in done.stdout  # twice the second row
    counts = json.loads((tmp_path / "rank-0.json").read_text())
    assert counts["elements"] == {"summa broadcast dense": 8, "run broadcast A": 1}
    assert counts["epochs"] == 1
    assert counts["peak"] >= 2 * 8 * 4 + 8  # X, the block and the length


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("summa broadcast dense", "broadcast"),
        ("summa_sparse broadcast A", "A"),
        ("run broadcast A", "other"),
        ("broad_func all_reduce dense", "sum"),
        ("outer_product2 all_reduce dense", "other"),
        ("dist_log_softmax2 all_gather dense", "softmax"),
        ("transpose broadcast dense", "other"),
    ],
)
def test_counts_are_sorted_by_the_function_that_calls(key: str, kind: str) -> None:
    assert find_kind(key) == kind
