"""Runs blocking calls in a thread, so that the event loop is never blocked."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class DaemonThread:
    """Makes calls one after another.

    The thread is a daemon: a call to a server that does not answer may hang, and must not keep the
    process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: Calls | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Make the call in the thread. Cancelling does not stop a call that has started."""
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(
                target=_work, args=(self._calls,), name=self._name, daemon=True
            ).start()
        future: Future[T] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    async def finish(self, call: Callable[[], T], timeout_s: float) -> T:
        """Make a last call, after which the thread ends. Raises TimeoutError.

        A later call starts a new thread.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.run(call)
        finally:
            calls, self._calls = self._calls, None
            if calls is not None:
                calls.put(None)


def _work(calls: Calls) -> None:
    while (item := calls.get()) is not None:
        future, call = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:  # raised where the call is awaited
            future.set_exception(error)
