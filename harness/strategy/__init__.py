"""The contracts between the harness and a strategy: everything a plugin imports stands here."""

from harness.comm.layout import Coordinates as Coordinates
from harness.strategy.admit import admit as admit
from harness.strategy.context import IGNORED as IGNORED
from harness.strategy.context import Context as Context
from harness.strategy.context import Remote as Remote
from harness.strategy.context import facts_of as facts_of
from harness.strategy.contract import MiniBatch as MiniBatch
from harness.strategy.contract import NoParams as NoParams
from harness.strategy.contract import Promise as Promise
from harness.strategy.contract import Published as Published
from harness.strategy.contract import Quantity as Quantity
from harness.strategy.contract import Strategy as Strategy
from harness.strategy.contract import Words as Words
from harness.strategy.contract import WordsKey as WordsKey
from harness.strategy.counts import LONG as LONG
from harness.strategy.counts import WORD as WORD
from harness.strategy.counts import BlockCounts as BlockCounts
from harness.strategy.counts import Counts as Counts
from harness.strategy.counts import Piece as Piece
from harness.strategy.counts import csr_bytes as csr_bytes
from harness.strategy.counts import label_bytes as label_bytes
from harness.strategy.counts import packed_bytes as packed_bytes
from harness.strategy.counts import turned_bytes as turned_bytes
from harness.strategy.facts import Facts as Facts
from harness.strategy.facts import ShapeBlocks as ShapeBlocks
from harness.strategy.facts import weights_of_model as weights_of_model
