"""From a spec to what a run starts with: its graph, opened, and its strategy, admitted to it."""

from pathlib import Path

import torch

from harness.graph.blocks import Blocks
from harness.registry import load_strategy
from harness.spec.spec import Spec
from harness.store.build import open_dataset
from harness.strategy import Strategy, admit, facts_of


def opened(root: Path, spec: Spec) -> tuple[Strategy, Blocks]:
    """The strategy and the graph; an error with the reason where the one cannot train on the other."""
    blocks = open_dataset(root, spec.dataset, getattr(torch, spec.precision))
    return admit(load_strategy(spec.strategy.name), spec, facts_of(blocks)), blocks
