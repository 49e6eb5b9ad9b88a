"""The strategy's own code as one rank of any world, on shapes alone: what it would do, and nothing of it done."""

from harness.replay.replay import Event as Event
from harness.replay.replay import Meter as Meter
from harness.replay.replay import OutlineEvent as OutlineEvent
from harness.replay.replay import Replayed as Replayed
from harness.replay.replay import Tape as Tape
from harness.replay.replay import outline as outline
from harness.replay.replay import replay as replay
