"""Presence: which users a NATS server, or all servers of a cluster, are connected to now."""

from __future__ import annotations

import json

from coterie.deploy.engine import EngineError
from coterie.deploy.nats_link import ANSWER_S, Link
from coterie.deploy.nats_server import PRESENCE

_OTHERS_S = 0.25  # for the other servers of a cluster, after the first has answered


async def connected(link: Link, most: int) -> frozenset[str]:
    """The names (``names.safe``) of the parties that are connected. most: connections that a server may list.

    Raises EngineError if no server answers.
    """
    client = link.client
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish(PRESENCE, json.dumps({"auth": True, "limit": most}).encode(), reply=inbox)
    users: set[str] = set()
    wait_s = ANSWER_S
    try:
        while True:  # each server of a cluster answers for itself
            answer = json.loads((await answers.next_msg(timeout=wait_s)).data)
            users.update(one.get("authorized_user", "") for one in answer["data"]["connections"])
            if not link.of_several():
                break
            wait_s = _OTHERS_S
    except TimeoutError:
        if wait_s == ANSWER_S:
            raise EngineError(f"{link.place()} does not say who is connected") from None
    finally:
        await answers.unsubscribe()
    return frozenset(user.removeprefix("CN=") for user in users)
