"""Programs whose logs can be recorded: cards in config/programs/NAME.yaml.

A card has the forms of the lines that a program prints (`harness.experiment.external.line_form`), and what its options
mean in a spec. It contains no code.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.base.validation import Frozen, format_value, suggest_names, unknown_name_error, validate
from harness.experiment.external.line_form import (
    OPTION,
    QUANTITIES,
    Form,
    compile_form,
    is_option,
    name_option,
)
from harness.ledger import NO_INDEX, AxisName, Direction, Key, Op, Phase, TensorName
from harness.registry import load_strategy, registered_strategies
from harness.spec.spec import list_spec_keys

Options = Mapping[str, Any]
"""The options of a program, by name."""
Scalar = str | int | float | bool | None
Text = Annotated[str, Field(min_length=1, max_length=1000)]
PROGRAMS = Path("config") / "programs"
PARAMS = "strategy.params."
VERTEX_RATE = "vertices_per_second"
"""A quantity that may be unknown, next to the keys of a spec: runs on a part of the graph have no value for it."""


def flatten_keys(settings: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key. A grid is one value."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and key != "grid":
            flat |= flatten_keys(value, f"{at}{key}.")
        else:
            flat[f"{at}{key}"] = value
    return flat


def _check_axes(axes: str) -> str:
    for axis in axes.split("+"):
        AxisName(axis)
    return axes


def _wrap(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _name_line(value: Any) -> Any:
    return {"line": value} if isinstance(value, str) else value


Keys = Annotated[dict[str, Any], AfterValidator(flatten_keys)]
"""Values by the key of a spec. A value such as --lr is that of an option."""
Values = Annotated[tuple[Scalar, ...], BeforeValidator(_wrap)]


class ProgramPart(Frozen):
    """The place in the ledger of a part of an epoch's seconds."""

    phase: Phase = Phase.CONVOLVE
    direction: Direction | None = None
    """By default, that of the last line with a direction, which is `forward` at first."""
    op: Op = Op.GLUE
    axis: Annotated[str, AfterValidator(_check_axes)] | None = None
    """An axis of the grid, or several, such as x+y."""
    tensor: TensorName | None = None
    in_flight: bool = False
    """Whether this time overlaps with computation, and so is not a part of the seconds."""

    def find_key(self, direction: Direction) -> Key:
        """Return the place of this part after a line with this direction."""
        return Key(self.phase, NO_INDEX, self.direction or direction, self.op, self.axis, tensor=self.tensor)


class Line(Frozen):
    """A line that a program prints. A line of the card that is only text has the other keys' defaults."""

    line: Text
    """Its form. A line without {epoch} belongs to the last epoch before it."""
    total: bool = False
    """Whether its times are sums over all epochs."""
    direction: Direction | None = None
    """The direction of the parts from here on."""
    shows: dict[str, Scalar] = {}
    """Options that a run with such a line has. Those of the last such line in the card are preferred."""
    marks: Literal["begin", "end"] | None = None
    """Whether it is only printed after training began, or at the end of a run."""


class ProgramCase(Frozen):
    """What is true of runs with certain options. It needs every option of `when` and `unless` to be known."""

    when: dict[str, Values] = {}
    """The values that options must have."""
    unless: dict[str, Values] = {}
    """The values that options must not have."""
    missing: tuple[str, ...] = ()
    """Options that must be unknown."""
    keys: Keys = {}
    """Keys of the spec."""
    differences: dict[str, Text] = {}
    """What a spec cannot express, by name. {--lr} is replaced by the value of an option."""
    unknown: Annotated[tuple[str, ...], BeforeValidator(_wrap)] = ()
    """Keys of the spec that have no value because of the difference."""

    def applies(self, options: Options) -> bool:
        """Return True if it applies to a run with these options."""
        return (
            options.keys() >= self.when.keys() | self.unless.keys()
            and not options.keys() & self.missing
            and all(options[name] in values for name, values in self.when.items())
            and not any(options[name] in values for name, values in self.unless.items())
        )

    def describe_differences(self, options: Options) -> dict[str, str]:
        """Return its differences, with the values of options."""

        def fill(found: "re.Match[str]") -> str:
            return str(options.get(name_option(found[1])))

        return {name: re.sub(rf"{{({OPTION}[\w-]+)}}", fill, text) for name, text in self.differences.items()}


class Program(Frozen):
    """A program whose logs can be recorded."""

    name: str
    title: Text
    """Its name in errors and tables."""
    revision: Text
    """The revision whose log is described."""
    times: Literal["mean", "median"]
    """The epoch time of a record: the last mean of the slowest process, or the median of the epochs with a time."""
    lines: tuple[Annotated[Line, BeforeValidator(_name_line)], ...] = Field(min_length=1, max_length=100)
    parts: dict[str, ProgramPart] = {}
    """The parts of an epoch's seconds, by the name that lines use."""
    first_epoch: int = Field(0, ge=0)
    """The number that the program gives to the first epoch."""
    final_loss: bool = False
    """Whether the loss is that of all training vertices, so that the last one is the loss of the run."""
    script: str = ""
    """The Python script whose options are read from the command, if the log or the harness has it."""
    defaults: dict[str, Scalar] = {}
    """The defaults of the options of `script`."""
    namespace: str = ""
    """An option that only this program has, if it prints its options as an argparse Namespace."""
    may_differ: tuple[str, ...] = ()
    """Options that may differ between the nodes of a run."""
    engine: str = ""
    """The option that names the library that carries messages."""
    ranks_per_log: str = ""
    """The option with the number of processes that write into one log, if each node writes its own."""
    needed: dict[str, Text] = {}
    """How the user gives a key that the log lacks: the end of an error, by key."""
    keys: Keys = {}
    """The keys of the spec of each run."""
    differences: dict[str, Text] = {}
    """What a spec cannot express about any run, by name."""
    cases: tuple[ProgramCase, ...] = ()
    """What is true only of some runs. Later cases replace earlier ones."""

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The forms of the lines. Raises ValueError for a mistake in one."""
        return tuple(compile_form(line.line, self.parts) for line in self.lines)

    @property
    def all_cases(self) -> tuple[ProgramCase, ...]:
        """The cases, after one for what is true of all runs."""
        return (ProgramCase(keys=self.keys, differences=self.differences), *self.cases)

    @property
    def options_by_key(self) -> dict[str, str]:
        """The options that are values of keys, by key."""
        pairs = [pair for case in self.all_cases for pair in case.keys.items()]
        return {key: name_option(value) for key, value in pairs if is_option(value)}

    @property
    def all_report(self) -> bool:
        """Whether every process reports its loss, and not only the first."""
        return any({"rank", "loss"} <= {field.name for field in form.fields} for form in self.forms)

    @property
    def last_line(self) -> str:
        """The line at the end of a run; empty if the program prints none."""
        return next((line.line for line in self.lines if line.marks == "end"), "")

    @property
    def report(self) -> str:
        """The line with a loss, for errors."""
        forms = zip(self.lines, self.forms, strict=True)
        return next(line.line for line, form in forms if "loss" in {field.name for field in form.fields})


def list_programs(root: Path) -> list[str]:
    """Return the names of the programs of a project, sorted."""
    return sorted(path.stem for path in (root / PROGRAMS).glob("*.yaml"))


def load_program(root: Path, name: str) -> Program:
    """Return the program config/programs/NAME.yaml of a project, or that of the path of a YAML file."""
    is_path = "/" in name or name.endswith(".yaml")
    if not is_path and name not in list_programs(root):
        way_out = f"Cards live in {PROGRAMS}/; the path of a card is accepted, too."
        raise unknown_name_error("program", name, list_programs(root), way_out)
    where = name if is_path else str(PROGRAMS / f"{name}.yaml")
    path = Path(name) if is_path else root / where
    program = validate(Program, {"name": path.stem, **read_yaml(path, where)}, where)
    _check_lines(program, where)
    _check_cases(program, where)
    return program


def _check_lines(program: Program, where: str) -> None:
    """Raise UserError for a line with a mistake, or if lines lack what a record or other lines need."""
    if taken := program.parts.keys() & QUANTITIES.keys():
        raise UserError(f"{where}: parts.{min(taken)}: this is the name of a quantity. Choose another name.")
    names, counting = set[str](), []
    for number, line in enumerate(program.lines, 1):
        at = f"{where}: line {number} of lines, {format_value(line.line)}"
        try:
            form = compile_form(line.line, program.parts)
        except ValueError as error:
            raise UserError(f"{at}: {error}.") from None
        names |= {name_option(field.name) if is_option(field.name) else field.name for field in form.fields}
        if line.total or any(field.unit == "shortfall" for field in form.fields):
            counting.append(at)
    if missing := {"epoch", "loss"} - names:
        raise UserError(f"{where}: lines: no line has {{{min(missing)}}}, which a record needs.")
    if counting and program.options_by_key.get("training.epochs") not in names:
        raise UserError(
            f"{counting[0]}: it needs the number of epochs: the key training.epochs has to be an option in a line."
        )


def _check_cases(program: Program, where: str) -> None:
    """Raise UserError for a key that a spec does not have, or that is unknown without a reason."""
    known = _list_keys(program, where)
    for number, case in enumerate(program.all_cases):
        at = f"{where}: case {number} of cases" if number else where
        for key in (*case.keys, *case.unknown, *(() if number else program.needed)):
            if key not in known:
                hint = suggest_names(key, known)
                raise UserError(
                    f"{at}: {key} is not a key of a spec.{hint} `harness list settings` lists them."
                )
        if case.unknown and len(case.differences) != 1:
            raise UserError(f"{at}: unknown needs one difference, which is the reason.")


def _list_keys(program: Program, where: str) -> set[str]:
    """Return the keys that a card may name, with the parameters of its strategies.

    Strategies have to be installed, because a card or a log of someone else must not name a file to be run.
    """
    names = {str(case.keys["strategy.name"]) for case in program.all_cases if "strategy.name" in case.keys}
    installed = [point.name for point in registered_strategies()]
    if unknown := [name for name in names if name not in installed]:
        raise UserError(f"{where}: strategy.name: {unknown_name_error('strategy', unknown[0], installed)}")
    params = (f"{PARAMS}{key}" for name in names for key in load_strategy(name).Params.model_fields)
    return {*list_spec_keys(), VERTEX_RATE, *params}
