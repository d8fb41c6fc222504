"""Presence: which users a NATS server, or all servers of a cluster, are connected to now; and what it says of one."""

from __future__ import annotations

import json

import nats.errors

from coterie.deploy.engine import EngineError, UndeliverableError
from coterie.deploy.nats_link import ANSWER_S, Link
from coterie.deploy.nats_names import OWN_RIGHTS, PRESENCE

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


def kept_apart(link: Link) -> bool:
    """Whether this party has an account of its own. Else other parties may reach what waits for it, and the API.

    Raises EngineError if the server does not say.
    """
    try:
        answer = link.run(link.client.request(OWN_RIGHTS, timeout=ANSWER_S))
        return bool(json.loads(answer.data)["data"]["account"] == link.token)
    except UndeliverableError:  # it may not ask: with the configuration of an earlier version
        return False
    except (TimeoutError, nats.errors.Error, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{link.place()} does not say which account is that of {link.token}: {error}") from None
