"""harness completion: prints the completion script of a shell, and finds the names that a shell completes."""

from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from harness.commands.answer import Answer
from harness.commands.layout import Block, Raw, View
from harness.commands.request import CONFIG, Request
from harness.commands.verb import Reporter, verb


@dataclass(frozen=True, config=CONFIG)
class CompletionRequest(Request):
    """The shell."""

    shell: Literal["bash", "zsh", "fish"] = "bash"
    """The shell that reads the script."""


@plain_dataclass(frozen=True)
class CompletionAnswer(Answer):
    """The script."""

    script: str

    def to_document(self) -> Any:
        return {"script": self.script}

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Raw(self.script.rstrip())


@verb(CompletionRequest)
def completion(request: CompletionRequest, _: Reporter) -> CompletionAnswer:
    """Print the completion script of this command for a shell.

    In ~/.bashrc: eval "$(harness completion)". In ~/.zshrc, after compinit: source <(harness completion --shell zsh).
    Names of strategies, graphs, machines and settings are completed, too.
    """
    from harness.cli.app import make_app

    return CompletionAnswer(make_app().generate_completion(shell=request.shell))


def list_names(kind: str) -> list[str]:
    """Return the strategies, datasets, machines, or keys of --set that exist here."""
    from harness.registry import registered_strategies
    from harness.spec.machine_card import list_machines
    from harness.spec.root import find_root
    from harness.spec.spec import list_spec_keys
    from harness.store.catalog import list_cards

    match kind:
        case "strategies":
            return [point.name for point in registered_strategies()]
        case "machines":
            return list_machines(find_root(None))
        case "datasets":
            return list_cards(find_root(None))
        case _:
            return [f"{key}=" for key in list_spec_keys()]
