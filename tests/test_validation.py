"""Validation errors name the path in the user's file, and the keys that are accepted there."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness.errors import UserError
from harness.validation import Frozen, validate


class Circle(Frozen):
    kind: Literal["circle"] = "circle"
    radius: float


class Square(Frozen):
    kind: Literal["square", "box"] = "square"
    side: float = Field(gt=0)


class Pen(Frozen):
    width: int


class Drawing(Frozen):
    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    pen: Pen | None = None
    others: list[Square] = []


CIRCLE = {"kind": "circle", "radius": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"shape": CIRCLE, "colour": 1}, "colour is not a key here; accepted keys: shape, pen, others"),
        ({"shape": {**CIRCLE, "side": 1}}, "shape.side is not a key here; accepted keys: kind, radius"),
        (
            {"shape": {"kind": "box", "side": 1, "radius": 1}},
            "shape.radius is not a key here; accepted keys: kind, side",
        ),
        ({"shape": CIRCLE, "pen": {"width": 1, "tip": 2}}, "pen.tip is not a key here; accepted keys: width"),
        (
            {"shape": CIRCLE, "others": [{"side": 1}, {"side": 1, "pen": 1}]},
            "others.1.pen is not a key here; accepted keys: kind, side",
        ),
        ({"shape": {"kind": "circle"}}, "shape.radius is missing"),
        (
            {"shape": {"kind": "square", "side": -1}},
            "shape.side = -1 is not accepted: input should be greater than 0",
        ),
        ({"pen": {"width": 1}}, "shape is missing"),
        (3, "the data = 3 is not accepted"),
    ],
)
def test_a_fault_is_named_as_its_writer_knows_it(data: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(Drawing, data, "drawing.yaml")
    assert str(caught.value).startswith(f"drawing.yaml: {message}")


def test_every_fault_is_told() -> None:
    with pytest.raises(UserError, match=r"shape\.radius is missing; pen\.width is missing"):
        validate(Drawing, {"shape": {"kind": "circle"}, "pen": {}}, "here")
