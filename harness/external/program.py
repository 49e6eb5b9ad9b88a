"""What a log is read into, and how a program is declared: how its log is read, and what its options mean in a spec."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from harness.external.log_options import Options
from harness.ledger import NO_INDEX, Amounts, AxisName, Direction, Key, Op, Phase, TensorName

NUMBER = r"(-?\d+(?:\.\d+)?|-?inf|nan)"
"""A number as Python formats it with a fixed number of digits."""


class ProgramLog(NamedTuple):
    """The text of a log. `where` names it in errors."""

    text: str
    where: str
    exit_code: int | None = None
    """The exit code of the program, if the harness ran it."""
    command: str = ""
    """The command, if the harness ran it."""

    def format_last_lines(self, count: int = 8) -> str:
        """Return the last `count` lines that are not empty."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-count:])


class EpochReport(NamedTuple):
    """The report of a process after an epoch. A time that the program did not print is NaN."""

    rank: int
    epoch: int
    seconds: float
    loss: float
    parts: Mapping[Key, Amounts] = {}
    """Parts of the seconds by their place in the ledger. The remaining seconds are other work."""


class Accuracy(NamedTuple):
    """The accuracy on a split after an epoch, as a fraction."""

    epoch: int
    split: str
    share: float


def list_accuracies(epoch: int, train: float, valid: float, test: float) -> list[Accuracy]:
    """Return the accuracies on all splits after an epoch, given as fractions."""
    return [Accuracy(epoch, "train", train), Accuracy(epoch, "valid", valid), Accuracy(epoch, "test", test)]


class LoggedRun(NamedTuple):
    """Everything that a log shows about a run."""

    options: Options
    """The options of the program, from what it prints and from its command. Empty if neither shows any."""
    reports: Sequence[EpochReport] = ()
    """The reports, sorted by process and epoch."""
    accuracies: Sequence[Accuracy] = ()
    final_test_accuracy: float | None = None
    """The test accuracy of the weights that were best on the validation vertices."""
    final_loss: float | None = None
    """The last loss, if the program prints that of all training vertices."""
    device_peaks: Mapping[int, int] = {}
    """The peak GPU memory of each process in bytes, by its rank."""
    nodes: Sequence[Options] = ()
    """Options that several processes print and that are equal within a run."""
    open_keys: frozenset[str] = frozenset()
    """Keys of a spec that differ between the processes, so that the run has no value for them."""
    mismatch: str = ""
    """The reason why this log was written by another program; empty if it was not."""
    has_begun: bool = False
    """Whether the log shows that the program began to train, even without a report."""
    has_ended: bool | None = None
    """Whether the log has the line that the program prints at the end; None if it prints none."""

    @property
    def last_reports(self) -> dict[int, EpochReport]:
        """The last report of each process, by its rank."""
        return {report.rank: report for report in self.reports}


class Beyond(NamedTuple):
    """A property of a program's runs that a spec cannot express."""

    name: str
    describe: Callable[[Options], str | None]
    """Returns the property for given options, or None if these runs do not have it."""
    key: str | None = None
    """The key of a spec that has no value for such a run."""


class Program(NamedTuple):
    """A program whose logs can be recorded."""

    title: str
    report: str
    """A report of an epoch, as shown in errors."""
    read: Callable[[ProgramLog], LoggedRun]
    map_keys: Callable[[Options], dict[str, Any]]
    """Returns the keys of a spec that follow from the options, and those that the program fixes."""
    beyond: Sequence[Beyond]
    needed: Mapping[str, str]
    """Keys that a record needs and a log may lack, with the end of the error in that case."""
    times: Literal["mean", "median"]
    """The epoch time of a record: the last mean of the slowest process, or the median of the epochs with a time."""
    all_report: bool = False
    """Whether every process reports, and not only the first."""
    ending: str = ""
    """What the program prints at the end of a run."""
    appends: str = ""
    """Advice for a log with several runs, if the program appends to its log files."""


BIAS = Beyond("bias", lambda _: "every layer adds a trained bias; ours has none")

EXCHANGE = Key(Phase.CONVOLVE, NO_INDEX, Direction.FORWARD, Op.ALL_TO_ALL, AxisName.P, tensor=TensorName.H)
REDUCTION = Key(Phase.SYNC, NO_INDEX, Direction.BACKWARD, Op.ALL_REDUCE, AxisName.P, tensor=TensorName.DW)
PRODUCT = Key(Phase.CONVOLVE, NO_INDEX, Direction.FORWARD, Op.SPMM)
REST = Key(Phase.OTHER, NO_INDEX, Direction.FORWARD)

FULL_GRAPH: Options = {
    "model.order": "aggregate_first",
    "model.projection": False,
    "model.activation": "relu",
    "model.residual": False,
    "training.warmup": 0,
    "training.optimizer": "adam",
    "training.batch": 0,
    "training.target": 0.0,
    "measure": {},
    "launch": 0,
}
"""Keys that all these programs fix, whatever their options are."""
NEEDS_DATASET = {"dataset.name": "which graph it trains on: give it by --dataset."}
NEEDS_RANKS = {"ranks": "how many processes it had: give it by --set ranks=N."}


def map_named(options: Options, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the options that have a key of a spec, by that key. Options without a value give no key."""
    return {key: options[name] for name, key in keys.items() if options.get(name) is not None}
