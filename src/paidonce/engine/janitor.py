"""Keeps the house in order: runs each task now and then, in one process at a time."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from paidonce.engine.archiving import Archive
from paidonce.engine.retention import HOURLY_S, OldMonths, Sweep, sweeps
from paidonce.engine.statistics import Folding
from paidonce.settings import RetentionSettings
from paidonce.store.db import Database
from paidonce.store.locks import held_by_us
from paidonce.store.queries import Connection
from paidonce.store.schema import ensure_partitions
from paidonce.telemetry import logger

log = logger(__name__)

FIRST_PAUSE_S: Final = 10.0
PAUSE_WHILE_MORE_S: Final = 1.0


class Task(Protocol):
    """Something that has to be done again and again, and that may be cut short at any moment."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float:
        """How long to wait until it is done again, unless there was more to do."""
        ...

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Do a bounded part of it; returns whether there is more to do at once."""
        ...


class Janitor:
    """Runs its tasks; each can be run by itself."""

    def __init__(
        self,
        database: Database,
        retention: RetentionSettings,
        tasks: Sequence[Task] | None = None,
    ) -> None:
        self._database = database
        self._tasks = usual_tasks(retention) if tasks is None else tasks

    async def run(self) -> None:
        """Work until cancelled. What is done often does not wait for what may take hours."""
        often = [task for task in self._tasks if task.period_s < HOURLY_S]
        seldom = [task for task in self._tasks if task.period_s >= HOURLY_S]
        await asyncio.gather(*(self._take_turns(tasks) for tasks in (often, seldom) if tasks))

    async def _take_turns(self, tasks: Sequence[Task]) -> None:
        """One task after the other, each in its own time."""
        begun_s = time.monotonic()
        due_s = {task.name: begun_s + FIRST_PAUSE_S for task in tasks}
        while True:
            await asyncio.sleep(max(min(due_s.values()) - time.monotonic(), 0.0))
            for task in tasks:
                if due_s[task.name] <= time.monotonic():
                    has_more = await self._run_task(task, datetime.now(UTC))
                    pause_s = PAUSE_WHILE_MORE_S if has_more else task.period_s
                    due_s[task.name] = time.monotonic() + pause_s

    async def run_once(self, now: datetime) -> bool:
        """Run every task that no other process is at; returns whether one has more to do.

        What fails is logged, stops no other task, and is tried again the next time.
        """
        return any([await self._run_task(task, now) for task in self._tasks])

    async def _run_task(self, task: Task, now: datetime) -> bool:
        try:
            async with (
                self._database.connection() as connection,
                held_by_us(connection, f"janitor {task.name}") as is_ours,
            ):
                return is_ours and await task.run_once(connection, now)
        except Exception as error:
            log.warning(
                "janitor_failed", task=task.name, error=type(error).__name__, detail=str(error)
            )
            return False


class Partitions:
    """The months ahead have their partitions before they begin."""

    name = "partitions"
    period_s = HOURLY_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        made = await ensure_partitions(connection, now)
        if made:
            log.info("partitions_made", names=made)
        return False


def usual_tasks(retention: RetentionSettings) -> list[Task]:
    """All that a running system needs, the most important first."""
    archive = None
    if retention.old_months == "archive" and retention.archive_dir is not None:
        archive = Archive(retention.archive_dir)
    is_dropped = retention.old_months == "drop"
    months = OldMonths(retention.payloads_days, is_dropped, archive)
    rows: list[Sweep] = sweeps(retention)
    return [Partitions(), Folding(), months, *rows]
