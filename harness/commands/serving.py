"""harness server: lists the servers that HARNESS_KEEP_SERVER keeps, and stops them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Any

from pydantic.dataclasses import dataclass

from harness.commands.answer import Answer
from harness.commands.output import Block, Headline, Table, TableColumn, View
from harness.commands.request import CONFIG, Request
from harness.commands.verb import Reporter, verb
from harness.formatting import format_count
from harness.launch.kept_server import KeptServer, list_servers
from harness.launch.server_settings import KEEP_SERVER


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class ServerRequest(Request):
    """What to do with the servers."""

    stop: bool = False
    """Stop all servers. Runs that they have started go on."""


@plain_dataclass(frozen=True)
class ServerAnswer(Answer):
    """The servers of this user on this machine."""

    servers: Sequence[KeptServer]
    stopped: bool

    def to_document(self) -> Any:
        return {"servers": [server.to_document() for server in self.servers], "stopped": self.stopped}

    def lay_out(self, view: View) -> Iterator[Block]:
        count = format_count(len(self.servers), "server")
        if not self.servers:
            yield Headline(
                f"No server runs. {KEEP_SERVER}=10 keeps one for 10 minutes after `harness run` and `check`."
            )
            return
        yield Headline(f"{count} stopped" if self.stopped else f"{count} kept for `harness run` and `check`")
        columns = [
            TableColumn("pid", "process", is_number=True),
            TableColumn("socket", "socket", may_wrap=True),
        ]
        yield Table(columns, [server.to_document() for server in self.servers])


@verb(ServerRequest)
def server(request: ServerRequest, _: Reporter) -> ServerAnswer:
    """List the servers that shorten the start of runs and checks, or stop them.

    If HARNESS_KEEP_SERVER is a number of minutes, the first run or check starts a server, which is kept for so long
    after the last one.
    """
    servers = list_servers()
    if request.stop:
        for each in servers:
            each.stop()
    return ServerAnswer(servers, request.stop)
