"""The strategy's own code as one rank of any world, on shapes alone: what it would do, and nothing of it done."""

from harness.replay.meter import Meter as Meter
from harness.replay.replay import Replayed as Replayed
from harness.replay.replay import replay as replay
from harness.replay.tape import Event as Event
from harness.replay.tape import Line as Line
from harness.replay.tape import Tape as Tape
from harness.replay.tape import outline as outline
