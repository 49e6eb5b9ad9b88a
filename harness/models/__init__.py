"""Layers and losses, written once over an operator set."""

from harness.models.gcn import gcn as gcn
from harness.models.operators import Hits as Hits
from harness.models.operators import Operators as Operators
