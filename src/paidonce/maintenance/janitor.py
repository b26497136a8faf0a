"""Runs the maintenance tasks, each in one process at a time."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from paidonce.clock import CLOCK
from paidonce.db.queries import Connection
from paidonce.maintenance.archive import Archive
from paidonce.maintenance.clock_jumps import ClockJumps
from paidonce.maintenance.partitions import HOURLY_S, NewPartitions, OldPartitions
from paidonce.maintenance.retention import sweeps
from paidonce.runtime.leader import Leader, LeadershipLostError
from paidonce.runtime.service import Service
from paidonce.settings.sections import RetentionSettings
from paidonce.statistics.counting import Folding
from paidonce.telemetry import logger

log = logger(__name__)

FIRST_PAUSE_S: Final = 10.0
PAUSE_WHILE_MORE_S: Final = 1.0


class Task(Protocol):
    """Periodic work that may be interrupted at any moment."""

    name: str
    period_s: float
    """The time until the next run, unless there is more to do."""

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Do a bounded part of it; returns whether there is more to do now."""
        ...


class Janitor(Service):
    """Runs its tasks, each in one process at a time."""

    def __init__(self, tasks: Sequence[Task], leader: Leader) -> None:
        super().__init__("janitor")
        self._tasks = tasks
        self._leader = leader

    async def run(self) -> None:
        """Work until asked to finish. Frequent tasks do not wait for those that may take hours."""
        frequent = [task for task in self._tasks if task.period_s < HOURLY_S]
        hourly = [task for task in self._tasks if task.period_s >= HOURLY_S]
        await asyncio.gather(*(self._take_turns(tasks) for tasks in (frequent, hourly) if tasks))

    async def _take_turns(self, tasks: Sequence[Task]) -> None:
        """One task after the other, each at its own period."""
        due_s = {task.name: time.monotonic() + FIRST_PAUSE_S for task in tasks}
        while not self.is_finishing:
            await self.pause(min(due_s.values()) - time.monotonic())
            for task in tasks:
                if due_s[task.name] <= time.monotonic() and not self.is_finishing:
                    has_more = await self._run_task(task, CLOCK.now())
                    pause_s = PAUSE_WHILE_MORE_S if has_more else task.period_s
                    due_s[task.name] = time.monotonic() + pause_s

    async def run_once(self, now: datetime) -> bool:
        """Run every task that no other process runs; returns whether one has more to do.

        A failure is logged, stops no other task, and is tried again the next time.
        """
        return any([await self._run_task(task, now) for task in self._tasks])

    async def _run_task(self, task: Task, now: datetime) -> bool:
        try:
            async with self._leader.lead(f"janitor {task.name}") as leadership:
                if leadership is None:
                    return False
                async with leadership.connection() as connection:
                    return await task.run_once(connection, now)
        except LeadershipLostError as error:
            log.warning("leadership_lost", task=task.name, detail=str(error))
        except Exception as error:
            self.record_failure(error, task=task.name)
        return False


class AfterClockJumps:
    """A task that deletes what is old: not while the clock may be ahead by mistake."""

    def __init__(self, task: Task) -> None:
        self.name, self.period_s = task.name, task.period_s
        self._task = task

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Run it, unless the clock jumped forward within a day."""
        if CLOCK.is_settled:
            return await self._task.run_once(connection, now)
        log.warning("retention_paused", task=self.name, detail="the clock jumped forward")
        return False


def usual_tasks(retention: RetentionSettings) -> list[Task]:
    """The tasks of a running system, the most important first."""
    action, folder = retention.partition_action, retention.archive_dir
    archive = Archive(folder) if action == "archive" and folder is not None else None
    old = OldPartitions(retention.payloads_days, action == "drop", archive)
    deleting: list[Task] = [old, *sweeps(retention)]
    return [NewPartitions(), Folding(), ClockJumps(), *map(AfterClockJumps, deleting)]
