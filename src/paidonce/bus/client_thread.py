"""A thread for a client that blocks, so that the event loop never does."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class ClientThread:
    """Calls are made one after another, and each is awaited.

    The thread does not keep the process from ending: a client whose broker is silent may hang.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: Calls | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """What the call returns or raises. A call that has begun is not stopped by a cancel."""
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(
                target=_work, args=(self._calls,), name=self._name, daemon=True
            ).start()
        future: Future[T] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """End the thread when it has made its calls. A later call gets a new one."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _work(calls: Calls) -> None:
    while (asked := calls.get()) is not None:
        future, call = asked
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:  # it is of whoever awaits the call
            future.set_exception(error)
