"""Models, written once in terms of an operator set that each strategy implements."""

from harness.models.gcn import gat as gat
from harness.models.gcn import gcn as gcn
from harness.models.operators import AttentionOperators as AttentionOperators
from harness.models.operators import ConvolutionOperators as ConvolutionOperators
from harness.models.operators import Operators as Operators
from harness.models.operators import Predictions as Predictions
from harness.models.operators import Skip as Skip
from harness.models.operators import SplitAccuracy as SplitAccuracy
from harness.models.weights import Part as Part
from harness.models.weights import Weight as Weight
from harness.models.weights import Weights as Weights
from harness.models.weights import group_by_part as group_by_part
