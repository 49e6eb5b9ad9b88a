"""What the package ogb says of its datasets is what the cards say, and its Evaluator counts as we do."""

import importlib
import subprocess
import sys

import pytest

from harness.base.validation import validate
from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.graph.cards.catalog import list_cards, load_card
from harness.graph.model import SPLITS, has_label
from harness.graph.sources.ogb import Ogb, read_ogb_table
from harness.ledger import Ledger
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec


@pytest.fixture(params=["ogbn-arxiv", "ogbn-products", "ogbn-papers100M"])
def evaluator(monkeypatch, request):
    """The package without the thread that asks for its newest version."""
    monkeypatch.setitem(sys.modules, "outdated", None)
    return importlib.import_module("ogb.nodeproppred").Evaluator(name=request.param)


def test_cards_agree_with_the_package():
    root = find_root()
    cards = [load_card(root, name) for name in list_cards(root)]
    found = {card.source.name: card for card in cards if isinstance(card.source, Ogb)}
    assert {"ogbn-arxiv", "ogbn-products", "ogbn-papers100M"} <= set(found)
    for name, card in found.items():
        told = read_ogb_table()[name]
        assert card.classes == int(told["num classes"])
        assert (told["num tasks"], told["eval metric"]) == ("1", "acc")
        # one file of features and one direction of every edge: what the package would add, symmetrising adds
        assert told["has_node_attr"] == "True"
        assert not (card.directed and told["add_inverse_edge"] == "True")


def test_the_package_is_not_imported_for_it():
    asked = (
        "import sys; from harness.graph.sources.ogb import read_ogb_table; "
        "print(*read_ogb_table(), 'ogb' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["ogbn-proteins", "ogbn-products", "ogbn-arxiv", "ogbn-papers100M", "False"]


def test_other_names_are_refused():
    with pytest.raises(Exception, match="ogbn-arxive is not one of ogbn-proteins, ogbn-products"):
        validate(Ogb, {"kind": "ogb", "name": "ogbn-arxive"}, "a card")


def test_accuracy_is_the_evaluators(evaluator):
    machine = {"name": "test"}
    spec = {"strategy": "serial", "dataset": "check", "grid": {"p": 1}, "machine": machine}
    case = Case("test", Spec.model_validate(spec), vertices=101)
    store, strategy = case.store(), case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), store)
    trainer.epoch()
    guess = trainer.output().argmax(dim=1)
    labels, split = store.labels(range(store.n)), store.split(range(store.n))
    hits, _ = trainer.evaluate()
    for name, value in SPLITS.items():
        of = has_label(labels) & (split == value)
        theirs = evaluator.eval({"y_true": labels[of, None].numpy(), "y_pred": guess[of, None].numpy()})
        assert hits[name].correct / hits[name].total == pytest.approx(theirs["acc"])
