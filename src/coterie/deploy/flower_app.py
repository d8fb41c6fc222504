"""The apps that Flower runs: pipes between the grid and the parties' own processes. They read nothing and hold no keys.

Flower starts a process for each message to a site, so this module imports little. The hub's process decides which
calls are made (``flower_switch.py``), and a site's process answers them (``flower.py``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.deploy import flower_pipe as pipe

HOME = "coterie-home"
"""The key of the node config (of a site) and of the run config (of the hub) that says where the party's home is."""
PACE_S = 0.3
LOST_S = 180.0
"""A call that is not answered within this time is given up; a party answers after a minute even if it still works."""
HUB_AWAY_S, PARTY_AWAY_S = 600.0, 20.0
"""How long the process of the hub, and of a site, may be away, such as while it is started again. A site's app waits
so long, since it would be another hop until the hub asks again."""

server = ServerApp()
client = ClientApp()


@server.main()  # type: ignore[untyped-decorator]
def serve(grid: Grid, context: Context) -> None:
    """The hub's app: carry what its process wants carried, until that says that the run is over."""
    relay(grid, Path(str(context.run_config[HOME])) / pipe.PIPE)


@client.query()  # type: ignore[untyped-decorator]
def call(message: Message, context: Context) -> Message:
    """A site's app: give its process the call, and return its answer, or nothing if the process does not run."""
    body = unpack(message.content)
    answer = None if body is None else ask(Path(str(context.node_config[HOME])) / pipe.PIPE, context.node_id, body)
    return Message(pack(answer), reply_to=message)


def ask(path: Path, node: int, call: bytes) -> bytes | None:
    """The answer of the party at this pipe to a call, or None if it gives none."""
    try:
        with pipe.dial(path, PARTY_AWAY_S) as connection:
            pipe.send(connection, msgspec.msgpack.encode((node, call)))
            return pipe.receive(connection)
    except OSError:
        return None


def pack(body: bytes | None) -> RecordDict:
    """The content of a message with these bytes, or with none."""
    if body is None:
        return RecordDict()
    array = Array(dtype="bytes", shape=(len(body),), stype="opaque", data=body)
    return RecordDict({"coterie": ArrayRecord({"bytes": array})})


def unpack(content: RecordDict) -> bytes | None:
    """The bytes in the content of a message, or None if there are none."""
    record = content.array_records.get("coterie")
    return record["bytes"].data if record is not None and "bytes" in record else None


@dataclass
class Carrier:
    """Calls on their way over the grid, at most one to a node. lost_s: until one is given up."""

    grid: Grid
    lost_s: float = LOST_S
    _sent: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def called(self) -> list[int]:
        """The nodes that a call is under way to."""
        return [node for node, _ in self._sent.values()]

    def push(self, calls: Iterable[tuple[int, bytes]]) -> list[int]:
        """Send calls. Returns the nodes that Flower takes none for."""
        refused = []
        for node, body in calls:
            message = Message(pack(body), dst_node_id=node, message_type="query", ttl=2 * self.lost_s)
            (identity,) = [*self.grid.push_messages([message])] or [None]
            if identity:
                self._sent[identity] = node, time.monotonic() + self.lost_s
            else:
                refused.append(node)
        return refused

    def pull(self) -> list[tuple[int, bytes | None]]:
        """What has come: by node, its answer, or None if it gives none."""
        found: list[tuple[int, bytes | None]] = []
        if self._sent:
            for one in self.grid.pull_messages(list(self._sent)):
                sent = self._sent.pop(one.metadata.reply_to_message_id, None)
                if sent is not None:
                    found.append((sent[0], unpack(one.content) if one.has_content() else None))
        now_s = time.monotonic()
        for identity in [identity for identity, (_, until_s) in self._sent.items() if until_s < now_s]:
            found.append((self._sent.pop(identity)[0], None))
        return found


def relay(grid: Grid, path: Path, *, away_s: float = HUB_AWAY_S, pace_s: float = PACE_S) -> None:
    """Carry until the hub says that it is over. A hub that ends and comes back goes on. Raises OSError if it does not.

    away_s: how long the hub's process may be away.  pace_s: between two looks at the grid.
    """
    carrier = Carrier(grid)
    while True:
        with pipe.dial(path, away_s) as connection:
            answers: list[tuple[int, bytes | None]] = []
            while (wanted := _exchange(connection, [*grid.get_node_ids()], carrier.called, answers)) is not None:
                calls, over = wanted
                if over:
                    return
                answers = [(node, None) for node in carrier.push(calls)]
                time.sleep(pace_s)
                answers += carrier.pull()


def _exchange(
    connection: socket.socket, nodes: Sequence[int], called: Sequence[int], answers: Sequence[tuple[int, bytes | None]]
) -> tuple[list[tuple[int, bytes]], bool] | None:
    """Tell the hub's process what there is; what it wants, or None if it has gone."""
    try:
        pipe.send(connection, msgspec.msgpack.encode((nodes, called, answers)))
        data = pipe.receive(connection)
    except OSError:
        return None
    return None if data is None else msgspec.msgpack.decode(data, type=tuple[list[tuple[int, bytes]], bool])
