"""harness replay: what one rank of a world would do in an epoch, without running it."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.request import Verbs, add_request, add_verb, columns, requested, show, whole
from harness.spec.root import project_root
from harness.validation import RANKS

if TYPE_CHECKING:
    from harness.graph.blocks import Blocks
    from harness.ledger import Amounts, Key
    from harness.replay import Replayed
    from harness.spec.spec import Spec
    from harness.strategy import Facts, Strategy


def add_verbs(verbs: Verbs) -> None:
    summary = "One epoch of one rank of a world of any size, on shapes: every kernel, every call, memory."
    parser = add_verb(verbs, "replay", _replay, summary)
    add_request(parser)
    parser.add_argument("--rank", type=whole(0, RANKS - 1), default=0, help="whose epoch (default: rank 0)")
    parser.add_argument(
        "--from-card", action="store_true", help="sizes as the dataset's card lets expect; nothing is built"
    )


def _replay(options: argparse.Namespace) -> int:
    from harness.replay import replay

    root = project_root(options.root)
    spec = requested(root, options)
    strategy, blocks = _admitted(root, spec, from_card=options.from_card)
    replayed = replay(strategy, options.rank, blocks)
    show(options, _document(spec, strategy.facts, replayed), _page(spec, strategy.facts, replayed))
    return 0


def _admitted(root: Path, spec: "Spec", *, from_card: bool) -> "tuple[Strategy, Blocks | None]":
    from harness.experiment.expected_facts import facts_of_card
    from harness.registry import load_strategy
    from harness.run.opening import opened
    from harness.store.catalog import load_card
    from harness.strategy import admit

    if not from_card:
        return opened(root, spec)
    facts = facts_of_card(load_card(root, spec.dataset.name))
    return admit(load_strategy(spec.strategy.name), spec, facts), None


def _document(spec: "Spec", facts: "Facts", replayed: "Replayed") -> dict[str, Any]:
    return {
        "label": spec.label,
        "rank": replayed.rank,
        "facts": asdict(facts),
        "entries": [_row(key, amounts) for key, amounts in replayed.entries.items()],
        "events": [
            {**_row(event.key, event.amounts), "leaves": event.leaves, "waits_for": event.waits_for}
            for event in replayed.events
        ],
        "persistent_bytes": {name.value: size for name, size in replayed.persistent_bytes.items()},
    }


COUNTED = ("calls", "words_payload", "words_received", "bytes", "flops", "bytes_touched")


def _row(key: "Key", amounts: "Amounts") -> dict[str, Any]:
    return {**key._asdict(), **{name: getattr(amounts, name) for name in COUNTED}}


def _page(spec: "Spec", facts: "Facts", replayed: "Replayed") -> str:
    """Entries in which something was counted, in the order in which the epoch comes to them."""
    head = ("direction", "layer", "phase", "op", "axis", "tensor", "calls", "words", "Gflop", "MB touched")
    rows: list[tuple[str, ...]] = [head]
    for key, amounts in replayed.entries.items():
        counted = (amounts.calls, amounts.words_payload, amounts.flops / 1e9, amounts.bytes_touched / 1e6)
        if any(counted):
            where = (
                key.direction,
                "" if key.layer < 0 else key.layer,
                key.phase,
                key.op,
                key.axis,
                key.tensor,
            )
            told = (f"{counted[0]:,}", f"{counted[1]:,.0f}", f"{counted[2]:.3g}", f"{counted[3]:.3g}")
            rows.append((*("" if part is None else str(part) for part in where), *told))
    held = ", ".join(f"{name} {size / 1e6:.3g}" for name, size in replayed.persistent_bytes.items())
    sizes = "counted in its store" if facts.exact else "expected from its card"
    return (
        f"{spec.label}, rank {replayed.rank} of {spec.ranks}; sizes {sizes}\n\n{columns(rows)}\n\n"
        f"{len(replayed.events):,} events. Held all the time, MB: {held}."
    )
