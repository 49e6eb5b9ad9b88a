"""What a benchmark trains on: made if it is not there, by whichever rank comes first."""

from harness.run import opening
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.store.blocks import Blocks
from harness.store.build import build
from harness.strategy import Strategy


def opened(spec: Spec) -> tuple[Strategy, Blocks]:
    build(project_root(), spec.dataset)
    return opening.opened(project_root(), spec)
