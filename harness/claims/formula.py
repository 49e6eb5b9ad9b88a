"""A formula: a function of the evidence, with its arguments, that computes our own value of what a paper prints.

A row of claims has the name of the function and its arguments, such as `count` and `vertices; reddit`. Arguments are
separated by semicolons, in the order of the parameters or as `name=value`. They are checked when the row is read. A
function whose values are in different units, such as `find_setting`, takes the unit from the row: `unit=ms`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, Field, create_model

from harness.base.errors import UserError
from harness.base.validation import Frozen, format_value, validate
from harness.claims.arguments import KnownNames
from harness.claims.estimates import Choices, Estimate
from harness.claims.units import UNITS

Value = bool | Choices | int | float | str | Estimate | Sequence[object]
"""Our value: a truth value, one for each choice of an open setting, a number with or without an interval, text, or
several values."""

Function = TypeVar("Function", bound=Callable[..., Value])
NAMED = re.compile(r"(\w+)=(.*)", re.DOTALL)


def formula(unit: str = "") -> Callable[[Function], Function]:
    """Let rows name a function of the evidence, whose arguments are annotated, and declare the unit of its values.

    Counts and ratios have no unit, and a function that looks up values of several quantities leaves it to the row.
    """
    assert not unit or unit in UNITS, unit

    def declare(function: Function) -> Function:
        setattr(function, "unit_of_values", unit)  # noqa: B010 (mypy knows no such attribute of functions)
        return function

    return declare


class Formula:
    """A function, the arguments that follow the evidence, and the unit of its values."""

    def __init__(
        self,
        function: Callable[..., Value],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        unit: str = "",
        text: str = "",
    ) -> None:
        """`text` is the arguments as the row has them."""
        self.function, self.args, self.kwargs = function, tuple(args), dict(kwargs or {})
        self.unit, self.text = unit, text

    def __call__(self, evidence: object) -> Value:
        return self.function(evidence, *self.args, **self.kwargs)

    def __str__(self) -> str:
        return f"{self.function.__name__}({self.text})"


def parse_formula(function: Callable[..., Value], arguments: str, known: KnownNames, where: str) -> Formula:
    """Return the formula of a row, by the function that it names. Errors begin with `where`."""
    parameters = _list_parameters(function)
    texts = _assign(arguments, parameters, where)
    unit = _choose_unit(getattr(function, "unit_of_values", ""), texts.pop("unit", ""), where)
    values = validate(_make_model(function), texts, where, context=known)
    args: list[object] = []
    kwargs: dict[str, object] = {}
    for parameter in parameters:
        value = getattr(values, parameter.name)
        if parameter.kind is Parameter.VAR_POSITIONAL:
            args += value
        elif parameter.kind is Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return Formula(function, args, kwargs, unit=unit, text=arguments)


def _list_parameters(function: Callable[..., Value]) -> list[Parameter]:
    """List the parameters that follow the evidence."""
    return list(signature(function).parameters.values())[1:]


def _assign(arguments: str, parameters: Sequence[Parameter], where: str) -> dict[str, Any]:
    """Assign the texts of a cell to the names of parameters: in order first, then those with a name."""
    words = [word.strip() for word in arguments.split(";")] if arguments.strip() else []
    if "" in words:
        raise UserError(f"{where}: {format_value(arguments)} has an empty argument.")
    named = [NAMED.fullmatch(word) for word in words]
    count = next((place for place, found in enumerate(named) if found), len(words))
    in_order = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    several = [each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL]
    texts: dict[str, Any] = dict(zip(in_order, words[:count], strict=False))
    if rest := words[len(in_order) : count]:
        if not several:
            takes = f"takes {', '.join(in_order)}" if in_order else "takes none in order"
            raise UserError(f"{where}: {format_value(rest[0])} is an argument too many: the formula {takes}.")
        texts[several[0]] = rest
    for word, found in zip(words[count:], named[count:], strict=True):
        if found is None:
            raise UserError(f"{where}: {format_value(word)} needs a name, as it follows one that has a name.")
        if found[1] in texts:
            raise UserError(f"{where}: {found[1]} is given twice.")
        texts[found[1]] = found[2].strip()
    return texts


def _choose_unit(declared: str, chosen: str, where: str) -> str:
    """Return the unit that the function declares, or that of the row."""
    if chosen and (declared or chosen not in UNITS):
        accepted = f"its values are in {declared}" if declared else f"known are {', '.join(UNITS)}"
        raise UserError(f"{where}: unit = {format_value(chosen)} is not accepted: {accepted}.")
    return declared or chosen


@cache
def _make_model(function: Callable[..., Value]) -> type[BaseModel]:
    """Make a model with a field for each parameter, which reads its text as the annotation says."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in _list_parameters(function):
        annotation: Any = hints[parameter.name]
        if parameter.kind is Parameter.VAR_POSITIONAL:
            fields[parameter.name] = (tuple[annotation, ...], Field(min_length=1))
        else:
            default = ... if parameter.default is Parameter.empty else parameter.default
            fields[parameter.name] = (annotation, default)
    return create_model(function.__name__, __base__=Frozen, **fields)
