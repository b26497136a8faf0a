"""The life cycle of background work: start, restart after a failure, stop within a deadline."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from paidonce.errors import PaidonceError
from paidonce.telemetry import logger, metrics

log = logger(__name__)

FINISH_S: Final = 1.0  # to finish a unit of work; unfinished work is done again later
CANCEL_S: Final = 1.5  # for cancelled services to end; includes the time of a user's handler
STEADY_S: Final = 10.0  # a restarted service or process that has run this long is healthy again


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff. Jitter adds up to that share of the delay, at random."""

    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0
    jitter: float = 0.2

    def delay_s(self, failures: int) -> float:
        """The delay after this many failures in a row."""
        try:
            delay_s = min(self.initial_s * self.factor ** (failures - 1), self.max_s)
        except OverflowError:
            delay_s = self.max_s
        return delay_s * (1 + self.jitter * random.random())


@dataclass(slots=True)
class Delays:
    """The delays of one series of failures."""

    backoff: Backoff
    failures: int = field(default=0, init=False)

    def next_s(self) -> float:
        """Count a failure; returns the delay before the next try."""
        self.failures += 1
        return self.backoff.delay_s(self.failures)

    def reset(self) -> None:
        """Start again with the shortest delay."""
        self.failures = 0


POLLING: Final = Backoff(initial_s=0.01, factor=2.0, max_s=0.25, jitter=0.0)
"""How long a busy service waits for a wake-up before it polls: longer while it finds nothing."""
RESTART: Final = Backoff(initial_s=0.5, factor=2.0, max_s=5.0, jitter=0.1)


async def happens_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for the event; returns whether it was set in time. None waits for ever.

    `asyncio.wait_for` in Python 3.11 loses a cancellation that arrives together with the event.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Listener:
    """Waits for wake-ups. One that came while nobody waited ends the next wait at once."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake this listener only."""
        self._woken.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a wake-up; returns whether one came in time."""
        is_woken = await happens_within(self._woken, timeout_s)
        self._woken.clear()
        return is_woken


class Service:
    """Background work. A subclass writes `run`, which may be called again after it has raised."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._finishing = asyncio.Event()
        self._listener = Listener()
        self._degraded_until_s = 0.0

    async def run(self) -> None:
        """Work until asked to finish."""
        raise NotImplementedError

    def finish(self) -> None:
        """Ask `run` to return after its current unit of work; `_listener` waits no longer."""
        self._finishing.set()
        self._listener.wake()

    @property
    def is_finishing(self) -> bool:
        """Whether `run` should return."""
        return self._finishing.is_set()

    @property
    def is_degraded(self) -> bool:
        """Whether it failed and has not worked steadily since."""
        return time.monotonic() < self._degraded_until_s

    async def pause(self, pause_s: float) -> None:
        """Wait, but not longer than until asked to finish."""
        if pause_s > 0:
            await happens_within(self._finishing, pause_s)

    def record_failure(self, error: Exception, pause_s: float = 0.0, **fields: object) -> None:
        """Log and count a failure; the service is degraded until STEADY_S after the pause."""
        self._degraded_until_s = time.monotonic() + pause_s + STEADY_S
        metrics.bound(metrics.SERVICE_CRASHES, self.name).inc()
        if isinstance(error, PaidonceError):  # its message says it all
            log.warning("service_interrupted", service=self.name, error=str(error), **fields)
        else:
            log.error("service_crashed", service=self.name, exc_info=error, **fields)


class EndedError(Exception):
    """A service returned although nobody had asked it to finish."""


class Supervisor:
    """Runs services side by side. One that raises is logged, counted and started again."""

    def __init__(self, *services: Service) -> None:
        self._services = list(services)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def degraded(self) -> list[str]:
        """The names of services that failed and have not worked steadily since."""
        return sorted({one.name for one in self._services if one.is_degraded})

    @property
    def is_idle(self) -> bool:
        """Whether all services have returned."""
        return all(task.done() for task in self._tasks)

    def add(self, *services: Service) -> None:
        """Add services before the start."""
        self._services += services

    def start(self) -> None:
        """Start all services."""
        for service in self._services:
            metrics.bound(metrics.SERVICE_CRASHES, service.name)  # at 0 from the start
            self._tasks.add(asyncio.create_task(_run(service), name=service.name))

    def finish(self) -> None:
        """Ask all services to finish; returns at once."""
        for service in self._services:
            service.finish()

    async def stop(self) -> None:
        """Let all services finish; cancel those that do not within the deadline."""
        self.finish()
        if not self._tasks:
            return
        _, unfinished = await asyncio.wait(self._tasks, timeout=FINISH_S)
        for task in unfinished:
            log.warning("service_cancelled", service=task.get_name())
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=CANCEL_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Supervisor"]:
        """Run the services while the body runs."""
        self.start()
        try:
            yield self
        finally:
            await self.stop()


async def _run(service: Service) -> None:
    """Run a service until it finishes, again after each failure."""
    delays = Delays(RESTART)
    while True:
        started_s = time.monotonic()
        try:
            await service.run()
            if not service.is_finishing:
                raise EndedError
        except Exception as error:
            if time.monotonic() - started_s > STEADY_S:
                delays.reset()
            pause_s = delays.next_s()
            service.record_failure(error, pause_s)
            await service.pause(pause_s)
        if service.is_finishing:
            return
