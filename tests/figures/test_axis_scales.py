"""An axis has the same ticks and units on paper and in the report."""

import pytest
from matplotlib.figure import Figure

from harness.report.figures.axis_scales import Scale, format_number, set_tried_ticks


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 0.002, "2 ms"),
        ("B", 5.3e7, "53 MB"),
        ("%", 0.25, "25 %"),
        ("times", 1.5, "1.5×"),
        ("number", 1e-7, "1e-7"),
        ("", 1e7, "10 M"),
    ],
)
def test_ticks_of_the_report_are_labelled_like_those_of_the_figure(
    unit: str, value: float, text: str
) -> None:
    converter = pytest.importorskip("vl_convert")
    scale = Scale("v", "label", unit)  # type: ignore[arg-type]
    y = scale.encode()
    y["axis"]["values"] = [value]
    spec = {"data": {"values": [{"v": value}]}, "mark": "point", "encoding": {"y": y}}
    assert f">{text.replace(' ', '')}<" in converter.vegalite_to_svg(spec).replace(" ", "")
    axes = Figure().add_subplot()
    scale.set_ticks(axes.yaxis, [value, 2 * value])
    assert str(axes.yaxis.get_major_formatter()(value)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.0, "1"), (0.25, "0.25"), (0.001, "0.001"), (1.5e-8, "1.5e-8")]
)
def test_numbers_have_no_prefix(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize("low", [1.9e-3, 0.021, 3e5])
@pytest.mark.parametrize("ratio", [1.05, 1.4, 3.0, 40.0, 3e3, 1e9])
def test_a_logarithmic_axis_has_two_to_twelve_ticks(low: float, ratio: float) -> None:
    axes = Figure().add_subplot()
    limits = Scale("t", "time", "s", log=True).find_limits([low, low * ratio])
    axes.set_ylim(*limits)
    Scale("t", "time", "s", log=True).set_ticks(axes.yaxis, limits)
    axes.set_ylim(*limits)
    assert 2 <= len([tick for tick in axes.get_yticks() if limits[0] <= tick <= limits[1]]) <= 12


@pytest.mark.parametrize(("log", "zero"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("values", [[0.95, 0.96], [3.0, 3.0], [1e-3, 10.0]])
def test_limits_lie_around_the_values(log: bool, zero: bool, values: list[float]) -> None:
    low, high = Scale("v", "v", log=log, zero=zero).find_limits(values)
    assert low < min(values) and max(values) < high
    assert not zero or low == 0


def test_labels_of_tried_numbers_prefer_powers_of_two() -> None:
    axes = Figure().add_subplot()
    set_tried_ticks(axes.xaxis, [1, 2, 3, 4, 96, 128])
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1", "2", "", "4", "", "128"]
