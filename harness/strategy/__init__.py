"""The contracts between the harness and a strategy: everything a plugin imports stands here."""

from harness.comm.layout import Coordinates as Coordinates
from harness.strategy.admit import admit as admit
from harness.strategy.context import IGNORED as IGNORED
from harness.strategy.context import Context as Context
from harness.strategy.context import facts_of as facts_of
from harness.strategy.contract import NoParams as NoParams
from harness.strategy.contract import Promise as Promise
from harness.strategy.contract import Strategy as Strategy
from harness.strategy.counts import BlockCounts as BlockCounts
from harness.strategy.counts import Counts as Counts
from harness.strategy.facts import Facts as Facts
from harness.strategy.facts import facts_of_card as facts_of_card
from harness.strategy.facts import weights_of_model as weights_of_model
from harness.strategy.minibatch import MiniBatch as MiniBatch
from harness.strategy.piece import Piece as Piece
from harness.strategy.published import Published as Published
from harness.strategy.published import Quantity as Quantity
from harness.strategy.remote import Remote as Remote
from harness.strategy.shapes import ShapeBlocks as ShapeBlocks
from harness.strategy.sizes import LONG as LONG
from harness.strategy.sizes import WORD as WORD
from harness.strategy.sizes import csr_bytes as csr_bytes
from harness.strategy.sizes import label_bytes as label_bytes
from harness.strategy.sizes import turned_bytes as turned_bytes
from harness.strategy.words import Words as Words
from harness.strategy.words import WordsKey as WordsKey
