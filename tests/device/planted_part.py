"""benchmarks/gpu.py with one part of its own, whose items fail in every way; each item notes that it was asked."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import gpu
from benchmarks.gpu_common import BrokenLawError, Part, Row, Size
from benchmarks.gpu_parts import PARTS
from harness.base.errors import UserError

ITEMS = ("first", "raises", "refuses", "breaks a law", "hangs", "dies", "faults", "last")


def ask(item: str, _size: Size) -> Iterator[Row]:
    with Path(os.environ["ASKED"]).open("a") as file:
        file.write(f"{item}\n")
    yield item, "begun | with a bar"
    match item:
        case "raises":
            raise RuntimeError("a plain error")
        case "refuses":
            raise UserError("this machine has no left hand")
        case "breaks a law":
            raise BrokenLawError("equal to serial: 1 is not 2")
        case "hangs":
            time.sleep(600)
        case "dies":
            os.abort()
        case "faults":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


PARTS.clear()
PARTS["planted"] = Part("What can go wrong?", ("item", "answer"), lambda _: ITEMS, ask, share=1.0, each=3)
gpu.SHORTEST = 0.1

if __name__ == "__main__":
    assert torch.cuda.is_available()
    gpu.main()
