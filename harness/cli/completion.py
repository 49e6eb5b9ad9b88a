"""harness completion: prints the completion script of a shell."""

from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, Raw, View
from harness.cli.commands.request import CONFIG, Request
from harness.cli.commands.verb import Reporter, verb


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
