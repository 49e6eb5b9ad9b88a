"""Validation errors name the path in the user's file, and the keys that are accepted there."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness.base.errors import UserError
from harness.base.validation import Frozen, validate


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
    ("data", "said"),
    [
        ({"shape": CIRCLE, "colour": 1}, ["colour", "shape, pen, others"]),
        ({"shape": {**CIRCLE, "side": 1}}, ["shape.side", "kind, radius"]),
        ({"shape": {"kind": "box", "side": 1, "radius": 1}}, ["shape.radius", "kind, side"]),
        ({"shape": CIRCLE, "pen": {"width": 1, "tip": 2}}, ["pen.tip", "width"]),
        ({"shape": CIRCLE, "others": [{"side": 1}, {"side": 1, "pen": 1}]}, ["others.1.pen", "kind, side"]),
        ({"shape": {"kind": "circle"}}, ["shape.radius"]),
        ({"shape": {"kind": "square", "side": -1}}, ["shape.side = -1", "0"]),
        ({"shape": {"kind": "circle"}, "pen": {}}, ["shape.radius", "pen.width"]),
        ({"pen": {"width": 1}}, ["shape"]),
        (3, ["3"]),
    ],
)
def test_every_fault_is_named_as_its_writer_knows_it(data: object, said: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        validate(Drawing, data, "drawing.yaml")
    assert all(word in str(caught.value) for word in ["drawing.yaml: ", *said])
