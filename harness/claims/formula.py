"""A formula: a function of the evidence, with its arguments, that computes our own value of what a paper prints."""

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

from harness.claims.estimates import Choices, Estimate
from harness.claims.evidence import Evidence

Value = bool | Choices | int | float | str | Estimate | Sequence[object]
"""Our value: a truth value, one for each choice of an open setting, a number with or without an interval, text, or
several values."""

P = ParamSpec("P")


class Formula:
    """A function and the arguments that follow the evidence.

    `Formula(count_vertices, "reddit")` calls `count_vertices(evidence, "reddit")` and is printed as
    `count_vertices('reddit')`.
    """

    def __init__(
        self, function: Callable[Concatenate[Evidence, P], Value], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        self.function: Callable[..., Value] = function
        self.args: tuple[object, ...] = args
        self.kwargs: dict[str, object] = kwargs

    @property
    def unit(self) -> str:
        """The unit that the function declares; empty if its values have none."""
        unit: str = getattr(self.function, "unit", "")
        return unit

    def __call__(self, evidence: Evidence) -> Value:
        return self.function(evidence, *self.args, **self.kwargs)

    def __str__(self) -> str:
        words = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.function.__name__}({', '.join(words)})"


Formulas = dict[str, Formula]
"""Formulas by the id of their claim."""
