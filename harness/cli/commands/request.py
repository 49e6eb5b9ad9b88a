"""Requests: what a verb takes on the command line, and its function takes in Python.

A request is a frozen dataclass that pydantic validates. A field is an option of the command line, and the text below
the field is its help. The command line passes text, which the validators of the fields parse, so both kinds of callers
get the same errors.

    @dataclass(frozen=True, config=CONFIG)
    class BalanceRequest(Request):
        name: Annotated[str, OptionStyle(metavar="NAME", is_positional=True)]
        \"""A name of `harness list datasets`.\"""
        _: KW_ONLY
        shards: Annotated[int, Field(ge=1, le=4096)] = 8
        \"""Cut the matrix into N x N blocks.\"""
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from inspect import get_annotations, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from harness.base.documents import parse_yaml_value
from harness.base.errors import UserError
from harness.base.validation import BOUNDS, RANKS, clip_line, format_value, suggest_names
from harness.spec.root import find_results_folder, find_root

CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class OptionStyle(NamedTuple):
    """How the command line writes a field, in the field's `Annotated` type."""

    name: str = ""
    """By default, -- and the name of the field."""
    metavar: str = ""
    """The placeholder of the value in the help."""
    takes: Literal["one", "repeated", "several", "rest"] = "one"
    """One value; one value each time, with the option repeated; several values after the option; or all words that
    follow, those that begin with a hyphen included."""
    is_positional: bool = False
    short: str = ""
    """Another name of one letter."""
    completes: Literal["", "strategies", "datasets", "machines", "programs", "settings"] = ""
    """The names that a shell completes."""
    python: str = ""
    """The help for callers from Python, if it is another one."""


def split_commas(value: Any) -> Any:
    """Split text such as 1,2,4. A single number becomes a sequence of one; repeated values are dropped."""
    if isinstance(value, int | float | str):
        value = str(value).split(",")
    return tuple(dict.fromkeys(value)) if isinstance(value, list | tuple) else value


def list_counts(counts: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a number or several numbers as a tuple."""
    return (counts,) if isinstance(counts, int) else counts


def parse_settings(value: Any) -> Any:
    """Parse texts KEY=VALUE into a mapping of keys to values. A mapping is returned unchanged."""
    if not isinstance(value, list | tuple):
        return value
    settings = {}
    for text in value:
        key, equals, setting = str(text).partition("=")
        if not equals:
            raise UserError(
                f"--set {clip_line(str(text), 60)} is not understood. Expected KEY=VALUE, for example "
                "training.epochs=5."
            )
        settings[key] = parse_yaml_value(setting, f"--set {clip_line(str(text), 60)}")
    return settings


StrategyName = Annotated[str, OptionStyle(metavar="NAME", completes="strategies")]
DatasetName = Annotated[str, OptionStyle(metavar="NAME", completes="datasets")]
MachineName = Annotated[str, OptionStyle(metavar="NAME", completes="machines")]
Ranks = Annotated[int, Field(ge=1, le=RANKS), OptionStyle(metavar="P")]
RankCounts = Annotated[
    Annotated[int, Field(ge=1, le=RANKS)] | tuple[Annotated[int, Field(ge=1, le=RANKS)], ...],
    BeforeValidator(split_commas),
    OptionStyle(metavar="P[,P...]"),
]
Names = Annotated[tuple[str, ...], BeforeValidator(split_commas), OptionStyle(metavar="NAME[,NAME...]")]
Grid = Annotated[str | Mapping[str, int] | None, OptionStyle(metavar="AXIS=SIZE,...")]
Settings = Annotated[
    Mapping[str, Any],
    BeforeValidator(parse_settings),
    OptionStyle(
        "--set",
        metavar="KEY=VALUE",
        takes="repeated",
        completes="settings",
        python='Values by keys of `harness list settings`, for example {"training.epochs": 5}.',
    ),
]
Folder = Annotated[Path | None, OptionStyle(metavar="DIR")]
File = Annotated[Path | None, OptionStyle(metavar="FILE")]
Files = Annotated[tuple[Path, ...], OptionStyle(metavar="FILE", takes="several")]
Folders = Annotated[tuple[Path, ...], OptionStyle(metavar="DIR", takes="several")]


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class Request:
    """What all verbs take."""

    options_come_first: ClassVar[bool] = False
    """Whether the help lists the options of this class before those of a class derived from it."""

    root: Folder = None
    """The project root (default: HARNESS_ROOT, or the nearest parent folder that contains datasets/catalog)."""

    @property
    def home(self) -> Path:
        """The project root. Raises UserError if there is none."""
        return find_root(None if self.root is None else str(self.root))

    @property
    def results(self) -> Path:
        """The folder of results."""
        return find_results_folder(self.home)

    @property
    def default_runs(self) -> Path:
        """The folder of runs, unless another one is named."""
        return self.results / "runs"


class OptionField(NamedTuple):
    """A field of a request as an option of the command line."""

    field: str
    option: str
    """The name of the option, or the metavar of an argument."""
    style: OptionStyle
    annotation: Any
    default: Any
    """`MISSING` if it is required."""
    help: str
    metadata: Sequence[Any]


def list_options(request: type[Request]) -> list[OptionField]:
    """Return the fields of a request as options: arguments first, then its own options, then the inherited ones."""
    own = {
        name
        for base in request.__mro__
        if base is request or base.__dict__.get("options_come_first")
        for name in get_annotations(base)
    }
    options = [_describe_field(request, name) for name in _list_fields(request)]
    return sorted(options, key=lambda option: (not option.style.is_positional, option.field not in own))


def _list_fields(request: Any) -> list[str]:
    return [field.name for field in fields(request)]


def _describe_field(request: Any, name: str) -> OptionField:
    info = request.__pydantic_fields__[name]
    style = _find_style(info.annotation, info.metadata) or OptionStyle()
    option = style.metavar if style.is_positional else style.name or f"--{name.rstrip('_').replace('_', '-')}"
    default = MISSING if info.is_required() else info.get_default(call_default_factory=True)
    # pydantic does not copy the descriptions of inherited fields.
    declaring = next(base for base in request.__mro__ if name in get_annotations(base))
    about = declaring.__pydantic_fields__[name].description or ""
    return OptionField(name, option, style, info.annotation, default, " ".join(about.split()), info.metadata)


def _find_style(annotation: Any, metadata: Sequence[Any] = ()) -> OptionStyle | None:
    """Return the `OptionStyle` in the metadata of a type, or of a member of a union."""
    found = next((each for each in metadata if isinstance(each, OptionStyle)), None)
    if found is None and get_origin(annotation) is Annotated:
        return _find_style(get_args(annotation)[0], get_args(annotation)[1:])
    if found is None and get_origin(annotation) in (Union, UnionType):
        return next(filter(None, map(_find_style, get_args(annotation))), None)
    return found


R = TypeVar("R", bound=Request)


def make_request(kind: Callable[..., R], name_field: Callable[[str], str], /, *args: Any, **values: Any) -> R:
    """Return the request of these values. An error names each invalid value as `name_field` names its field."""
    try:
        return kind(*args, **values)
    except ValidationError as error:
        faults = error.errors()
        for fault in faults:
            if isinstance(cause := fault.get("ctx", {}).get("error"), UserError):
                raise cause from None
        # For a union there is a fault for each member. The deepest is about the member that the value resembles.
        deepest = {fault["loc"][:1]: fault for fault in sorted(faults, key=lambda fault: len(fault["loc"]))}
        described = (_describe_fault(kind, fault, name_field) for fault in deepest.values())
        raise UserError("; ".join(described) + ".") from None


def _describe_fault(kind: Any, fault: ErrorDetails, name_field: Callable[[str], str]) -> str:
    known = _list_fields(kind)
    place = fault["loc"][0] if fault["loc"] else ""
    field = list(signature(kind).parameters)[place] if isinstance(place, int) else str(place)
    if fault["type"] in ("missing", "missing_argument"):
        return f"{name_field(field)} is missing"
    if fault["type"].startswith("unexpected"):
        return f"{field} is not an argument here.{suggest_names(field, known)} Arguments: {', '.join(known)}"
    info = kind.__pydantic_fields__[field]
    accepted = describe_values(info.annotation, info.metadata) or fault["msg"].removeprefix("Value error, ")
    value = fault["input"] if isinstance(fault["input"], str) else format_value(fault["input"])
    return f"{name_field(field)} {clip_line(value, 40)} is not accepted: {accepted[0].lower()}{accepted[1:]}"


def remove_metadata(annotation: Any) -> Any:
    """Return a type without `Annotated`, as signatures show it."""
    if get_origin(annotation) is Annotated:
        return remove_metadata(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(remove_metadata, get_args(annotation)))]  # noqa: UP007
    if get_origin(annotation) is tuple:
        return tuple[tuple(map(remove_metadata, get_args(annotation)))]  # type: ignore[misc]
    return annotation


def describe_values(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return the accepted values of a number or a choice, also in a sequence or beside None; else an empty string."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return describe_values(inner, metadata)
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if annotation in (int, float):
        # Bounds that pydantic took from `Field` are in its metadata.
        bounds = [bound for each in metadata for bound in getattr(each, "metadata", None) or [each]]
        limits = [
            f"{word} {getattr(bound, name):{'d' if annotation is int else 'g'}}"
            for name, word in BOUNDS.items()
            for bound in bounds
            if getattr(bound, name, None) is not None
        ]
        return " ".join(["a whole number" if annotation is int else "a number", *limits])
    parts = (describe_values(part, metadata) for part in get_args(annotation))
    return next(filter(None, parts), "")
