"""How a party asks its consumer for messages: for several at a time, and takes them one by one as they come.

To ask for each by itself would cost a way there and back for each part of a packet. The client library's own ``fetch``
gives several only when all of them are there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from coterie.deploy.nats_names import STREAM

TOGETHER = 8
"""So many messages are asked for at a time."""


class Pulls:
    """What comes from a party's own consumer over one connection. token: of the party."""

    def __init__(self, client: Client, token: str, inbox: str, subscription: Subscription) -> None:
        self._client, self._inbox, self._subscription = client, inbox, subscription
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{token}"
        self._requests = 0

    @classmethod
    async def of(cls, client: Client, token: str) -> Pulls:
        """Listen to what comes."""
        inbox = client.new_inbox()
        return cls(client, token, inbox, await client.subscribe(f"{inbox}.*"))

    async def messages(self, wait_s: float) -> AsyncIterator[Msg]:
        """The next messages, at most ``TOGETHER``. Raises TimeoutError if one of them does not come in ``wait_s``, or
        earlier if the server says that none will come.
        """
        self._requests += 1
        reply = f"{self._inbox}.{self._requests}"
        request = {"batch": TOGETHER, "expires": int(wait_s * 1e9)}
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=reply)
        left = TOGETHER
        while left:
            message = await self._subscription.next_msg(timeout=wait_s)
            if message.reply:  # it is to be acknowledged; else the server says something of a request
                left -= 1
                yield message
            elif message.subject == reply:
                raise TimeoutError((message.headers or {}).get("Description", "the server gives no messages"))

    async def close(self) -> None:
        """Listen no more."""
        await self._subscription.unsubscribe()
