"""Models, written once in terms of an operator set that each strategy implements."""

from harness.strategy.models.gcn import gat as gat
from harness.strategy.models.gcn import gcn as gcn
from harness.strategy.models.operators import AttentionOperators as AttentionOperators
from harness.strategy.models.operators import ConvolutionOperators as ConvolutionOperators
from harness.strategy.models.operators import Operators as Operators
from harness.strategy.models.operators import Predictions as Predictions
from harness.strategy.models.operators import Skip as Skip
from harness.strategy.models.operators import SplitAccuracy as SplitAccuracy
from harness.strategy.models.weights import Part as Part
from harness.strategy.models.weights import Weight as Weight
from harness.strategy.models.weights import Weights as Weights
from harness.strategy.models.weights import group_by_part as group_by_part
