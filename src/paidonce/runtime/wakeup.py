"""Wakes services that wait for new rows; other processes by LISTEN and NOTIFY on one channel.

Correctness never depends on a wake-up: every service also polls, so a lost one costs seconds.
"""

import asyncio
from typing import Final

from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import DatabaseUnavailableError
from paidonce.runtime.service import Listener, Service

NOTIFY_PAUSE_S: Final = 0.05  # between two NOTIFYs, at least: their commits wait for each other


class Wakeup:
    """A signal to all its listeners, and through `unsent` to other processes."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.unsent = Listener()
        """Woken when this process, and not another one, has something new."""

    def listener(self) -> Listener:
        """A new listener, which lives as long as the process."""
        self._listeners.append(Listener())
        return self._listeners[-1]

    def wake(self) -> None:
        """Wake all listeners: something they wait for was committed."""
        self.wake_here()
        self.unsent.wake()

    def wake_here(self) -> None:
        """Wake the listeners of this process only."""
        for listener in self._listeners:
            listener.wake()


def channel(schema: str) -> str:
    """The channel of an installation: others may share the database."""
    return f"{schema}_queue"


async def notify_workers(connection: Connection) -> None:
    """Wake the workers of all processes, once this transaction has committed."""
    await connection.execute(f'NOTIFY "{channel(connection.schema)}"')


class WakeupSender(Service):
    """Sends the wake-ups of this process to the others, many in one NOTIFY."""

    def __init__(self, database: Database, wakeup: Wakeup) -> None:
        super().__init__("wakeup sender")
        self._database = database
        self._listener = wakeup.unsent

    async def run(self) -> None:
        """Send until asked to finish."""
        while not self.is_finishing:
            await self._listener.wait()
            async with self._database.connection() as connection:
                await notify_workers(connection)
            await self.pause(NOTIFY_PAUSE_S)


class WakeupReceiver(Service):
    """Wakes the listeners of this process when another process sends a wake-up."""

    def __init__(self, database: Database, wakeup: Wakeup) -> None:
        super().__init__("wakeup receiver")
        self._database = database
        self._wakeup = wakeup
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Receive until asked to finish. Raises DatabaseUnavailableError."""
        self._ended.clear()
        connection = await self._database.dedicated()
        try:
            connection.add_termination_listener(lambda _: self._ended.set())
            name = channel(connection.schema)
            await connection.add_listener(name, lambda *_: self._wakeup.wake_here())
            self._wakeup.wake_here()  # for what was sent while nobody listened
            await self._ended.wait()
        finally:
            connection.terminate()
        if not self.is_finishing:
            raise DatabaseUnavailableError("the connection that receives wake-ups was lost")

    def finish(self) -> None:
        """Stop receiving."""
        super().finish()
        self._ended.set()
