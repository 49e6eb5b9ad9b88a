"""What the figures of benchmarks share. Benchmarks without figures run without matplotlib."""

from collections.abc import Mapping, Sequence

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.figures.drawing import style_context
from harness.figures.palette import COLOURS


def set_plain_ticks(*axes: Axis) -> None:
    """Write numbers on logarithmic axes as text; matplotlib would write formulas."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())


@style_context()
def stacked_bars(
    labels: Sequence[str], parts: Mapping[str, Sequence[float]], title: str, height: float
) -> Figure:
    """Draw a bar for each label, from the top down, with its parts end to end."""
    figure = Figure(figsize=(3.4, height), layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(labels)
    for colour, (name, widths) in zip(COLOURS, parts.items(), strict=False):
        axes.barh(range(len(labels)), widths, left=left, color=colour, label=name)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(title)
    axes.legend()
    return figure
