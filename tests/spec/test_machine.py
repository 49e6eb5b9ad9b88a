"""All machine cards load, and negative, infinite or NaN constants are refused."""

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.validation import validate
from harness.spec.machine_card import MachineCard, list_machines, load_machine_card

ROOT = Path(__file__).parents[2]
CONSTANT = {"value": 1.0, "within": 1.0, "source": "assumed"}
CARD: dict[str, Any] = {
    "name": "whole",
    "composed_from": 1,
    "threads_per_rank": 1,
    "memory_gb": 1.0,
    "start_seconds": 1.0,
    "links": {
        "devices_per_node": 1,
        **dict.fromkeys(
            ("intra_gbs", "node_gbs", "intra_latency_us", "latency_us", "all_to_all_share", "cpu_gbs"),
            CONSTANT,
        ),
        **dict.fromkeys(("peer_gbs", "call_us", "exchange_us"), CONSTANT),
        "noise": {"deviation": 1.0, "source": "assumed"},
        "measured": [{"before": 1, "size": 2, "gbs": 1.0}],
    },
    "rates": {
        **dict.fromkeys(
            ("tflops", "memory_gbs", "efficiency", "launch_us", "issue_us", "sample_ns"), CONSTANT
        ),
        "spmm": {
            **dict.fromkeys(("entry_column", "entry", "row_column", "row", "call", "within"), 1.0),
            **dict.fromkeys(("missed_column", "missed_entry", "cache_mb"), 1.0),
            "pass_columns": 1,
            "source": "assumed",
        },
        "cores_per_node": 1,
    },
    "plexus_model": dict.fromkeys(
        ("flops", "forward", "backward", "intercept", "intra_gbs", "node_gbs"), 1.0
    ),
    "slurm": {
        "ranks_per_node": 1,
        "cpus_per_rank": 1,
        "gpus_per_node": 1,
        "memory_mb": 1,
        "minutes": 1.0,
        "shared_nodes": 1,
        "job_minutes": 1.0,
    },
}
"""A card with all numbers that a card can have."""


def numbers(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every number of a card."""
    if isinstance(part, dict | list):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        return [found for key, inner in items for found in numbers(inner, (*path, key))]
    return [path] if isinstance(part, int | float) else []


def changed(part: Any, path: tuple[Any, ...], value: float) -> Any:
    """The same card with another number at this path."""
    if not path:
        return value
    inner = changed(part[path[0]], path[1:], value)
    if isinstance(part, list):
        return [inner if number == path[0] else old for number, old in enumerate(part)]
    return {**part, path[0]: inner}


@pytest.mark.parametrize("name", list_machines(ROOT))
def test_every_card_loads(name: str) -> None:
    assert load_machine_card(ROOT, name).name == name


@pytest.mark.parametrize("name", ["perlmutter-measured", "perlmutter-gloo"])
def test_cards_of_one_machine_have_the_same_devices(name: str) -> None:
    card, sibling = (load_machine_card(ROOT, each) for each in ("perlmutter", name))
    assert (sibling.rates, sibling.fitted_to) == (card.rates, card.fitted_to)


def test_cards_of_clusters_turn_the_flight_recorder_of_nccl_on() -> None:
    cards = [load_machine_card(ROOT, name) for name in list_machines(ROOT)]
    with_gpus = [card for card in cards if card.engine == "nccl" and card.slurm]
    assert len(with_gpus) >= 7
    for card in with_gpus:
        environment = card.slurm.environment
        assert int(environment.get("TORCH_FR_BUFFER_SIZE", 0)) > 0, card.name
        assert environment.get("TORCH_NCCL_DUMP_ON_TIMEOUT") == "1", card.name


@pytest.mark.parametrize("term", ["missed_column", "missed_entry"])
def test_a_term_for_what_the_cache_misses_needs_the_size_of_the_cache(term: str) -> None:
    left_out = {"cache_mb", "missed_column", "missed_entry"} - {term}
    without = {key: value for key, value in CARD["rates"]["spmm"].items() if key not in left_out}
    with pytest.raises(UserError, match=f"{term} needs cache_mb"):
        validate(MachineCard, {**CARD, "rates": {**CARD["rates"], "spmm": without}}, "whole")


def test_the_card_above_has_every_number_that_a_card_can_have() -> None:
    whole = validate(MachineCard, CARD, "whole").model_dump(mode="json")
    assert sorted(map(str, numbers(CARD))) == sorted(map(str, numbers(whole)))


@pytest.mark.parametrize("value", [-1, -1e-9, inf, -inf, nan])
@pytest.mark.parametrize("path", numbers(CARD), ids=lambda path: ".".join(map(str, path)))
def test_no_number_of_a_card_is_negative_or_not_finite(path: tuple[Any, ...], value: float) -> None:
    assert validate(MachineCard, CARD, "whole")
    with pytest.raises(UserError, match=".".join(map(str, path))):
        validate(MachineCard, changed(CARD, path, value), "whole")


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """A project with these machine cards."""

    def write(**cards: str) -> Path:
        folder = tmp_path / "config" / "machines"
        folder.mkdir(parents=True)
        for name, text in cards.items():
            (folder / f"{name}.yaml").write_text(text)
        return tmp_path

    return write


def write_constant(value: float) -> str:
    return f"{{ value: {value}, within: 1, source: measured }}"


LINKS = f"""description: a machine
device: cuda
engine: nccl
checked: {{ runs: 10, inside: 9, median_error: 0.1, source: a page }}
links:
  devices_per_node: 4
  intra_gbs: {write_constant(200)}
  node_gbs: {write_constant(100)}
  latency_us: {write_constant(10)}
  intra_latency_us: {write_constant(1)}
  all_to_all_share: {write_constant(1)}
slurm: {{ ranks_per_node: 4, qos: regular }}
"""


def test_card_like_another_has_its_keys_and_constants(project: Callable[..., Path]) -> None:
    slow = f"description: slower\nlike: fast\nlinks:\n  node_gbs: {write_constant(20)}\n"
    slowest = "description: slowest\nlike: slow\nslurm: { ranks_per_node: 2, qos: null }\n"
    root = project(fast=LINKS, slow=slow, slowest=slowest)
    fast, slow_card, last = (load_machine_card(root, name) for name in ("fast", "slow", "slowest"))
    assert fast.links and slow_card.links and last.slurm
    assert slow_card.links == fast.links.model_copy(update={"node_gbs": slow_card.links.node_gbs})
    assert slow_card.links.node_gbs.value == 20
    assert slow_card.slurm == fast.slurm
    assert (slow_card.engine, slow_card.checked, slow_card.description) == ("nccl", None, "slower")
    assert last.links == slow_card.links
    assert (last.slurm.ranks_per_node, last.slurm.qos) == (2, None)


@pytest.mark.parametrize("other", ["one", "two", "absent", "[two]"])
def test_card_like_itself_or_an_absent_one_is_refused(other: str, project: Callable[..., Path]) -> None:
    root = project(one=f"description: one\nlike: {other}\n", two="description: two\nlike: one\n")
    with pytest.raises(UserError, match="like"):
        load_machine_card(root, "one")
