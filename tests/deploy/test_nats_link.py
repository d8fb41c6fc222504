"""The races of a connection to NATS: work that is cancelled, and what is left of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from coterie.deploy.engine import EngineError, UndeliverableError
from coterie.deploy.nats_link import Link


def lost() -> ConnectionError:
    return ConnectionError("the connection broke")


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def stubborn() -> str:
    """As ``wait_for``, which takes no notice of a cancellation that comes with its answer."""
    with suppress(asyncio.CancelledError):
        await never()
    return "answer"


async def failing() -> str:
    with suppress(asyncio.CancelledError):
        await never()
    raise ValueError("the answer is wrong")


@pytest.mark.parametrize("work", [stubborn, failing])
def test_work_that_ends_although_it_was_cancelled_leaves_no_cancellation(work: Callable[[], Awaitable[str]]) -> None:
    """Else the next connection that breaks would look like the end of the whole task."""

    async def twice() -> tuple[object, int]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        ends = [loop.create_future(), loop.create_future()]
        for at, end in enumerate(ends):
            loop.call_later(0.01 * (at + 1), end.set_result, None)
        found: object
        try:
            found = await Link._first(work(), ends[0], lost)  # type: ignore[arg-type]
        except ValueError as error:
            found = str(error)
        with pytest.raises(ConnectionError):
            await Link._first(never(), ends[1], lost)
        return found, task.cancelling()

    assert asyncio.run(twice()) in [("answer", 0), ("the answer is wrong", 0)]


def test_a_task_that_is_cancelled_as_its_connection_breaks_ends() -> None:
    """Both come in one turn of the loop. The cancellation is somebody else's, so it is not to be taken for the end."""

    async def both() -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(Link._first(never(), end, lost))
        await asyncio.sleep(0)
        task.cancel()
        end.set_result(None)
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()

    asyncio.run(both())


def test_what_the_server_denies_is_told_to_all_that_wait() -> None:
    """Two threads wait: that of the node, and the one that says that packets are worked on."""
    link = Link.__new__(Link)
    link.token, link._refused, link._closing, link._lock = "a", None, False, threading.Lock()
    link._loop = asyncio.new_event_loop()
    link._broken = link._loop.create_future()
    turning = threading.Thread(target=link._loop.run_forever)
    turning.start()
    said: list[str] = []

    def waits() -> None:
        try:
            link.run(never())
        except EngineError as error:
            said.append(str(error))

    threads = [threading.Thread(target=waits) for _ in range(2)]
    for one in threads:
        one.start()
    denied = UndeliverableError("denied")
    link._loop.call_soon_threadsafe(link._loop.call_later, 0.1, lambda: link._break(denied, for_good=False))
    for one in threads:
        one.join()
    link._loop.call_soon_threadsafe(link._loop.stop)
    turning.join()
    link._loop.close()
    assert said == ["denied", "denied"]
