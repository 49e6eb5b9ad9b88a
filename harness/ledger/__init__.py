"""The ledger of a rank: events of an epoch with their times and amounts, recorded without interpretation."""

from harness.ledger.ledger import AMOUNTS as AMOUNTS
from harness.ledger.ledger import NO_INDEX as NO_INDEX
from harness.ledger.ledger import Amounts as Amounts
from harness.ledger.ledger import Clock as Clock
from harness.ledger.ledger import HostClock as HostClock
from harness.ledger.ledger import Key as Key
from harness.ledger.ledger import Ledger as Ledger
from harness.ledger.ledger import Recording as Recording
from harness.ledger.ledger import Scope as Scope
from harness.ledger.ledger import apply as apply
from harness.ledger.ledger import charge_backward as charge_backward
from harness.ledger.ledger import clock_for as clock_for
from harness.ledger.vocabulary import COMPUTING as COMPUTING
from harness.ledger.vocabulary import MOVING as MOVING
from harness.ledger.vocabulary import SAMPLING as SAMPLING
from harness.ledger.vocabulary import AxisName as AxisName
from harness.ledger.vocabulary import Direction as Direction
from harness.ledger.vocabulary import Op as Op
from harness.ledger.vocabulary import Phase as Phase
from harness.ledger.vocabulary import TensorName as TensorName
