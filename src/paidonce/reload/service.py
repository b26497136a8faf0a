"""Asks all processes for a reload and decides for all: they take the new settings, or none does.

Each process that takes part holds an advisory lock, so PostgreSQL knows who has to answer. Each
reads and checks the settings on its own and answers. When all have answered, one row decides. A
process that is asked and does not see the decision asks for it until it does.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from asyncpg import Record

from paidonce.audit.store import record_action
from paidonce.core.actors import Actor
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, load_queries
from paidonce.errors import ConflictError
from paidonce.ids import new_id
from paidonce.reload.model import ProcessReload, Reload, ReloadStatus

QUERIES: Final = load_queries(__file__)
CHANNEL: Final = "paidonce_reload"
ANSWER_S: Final = 15.0
"""How long the processes have to read and check the settings."""
FORGOTTEN_S: Final = 30.0
"""After this a reload without a decision is refused: whoever asked has died."""
TURN_S: Final = 60.0
"""How long to wait for other reloads."""
TAKE_S: Final = 60.0
"""How long to wait until all use the new settings."""
POLL_S: Final = 0.05
KEPT_DAYS: Final = 7


class ReloadService:
    """Asks for reloads, in any process or none of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reload(self, actor: Actor, group: int | None = None) -> Reload:
        """Have all processes, or those of one group, read their settings again.

        Raises ConflictError if another reload does not end, or no process runs.
        """
        reload_id = await self._ask(actor, group)
        is_answered = await self._wait_for_answers(reload_id, group)
        await self._decide(reload_id, actor, is_answered)
        deadline_s = time.monotonic() + TAKE_S
        done = await self._read(reload_id)
        while done.status is ReloadStatus.TAKEN and not done.is_complete:
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(POLL_S)
            done = await self._read(reload_id)
        return done

    async def _ask(self, actor: Actor, group: int | None) -> UUID:
        """Open a reload, when no other one is open."""
        reload_id, deadline_s = new_id(), time.monotonic() + TURN_S
        while True:
            async with self._database.transaction() as connection:
                await QUERIES["close_forgotten"].run(connection, forgotten_s=FORGOTTEN_S)
                await QUERIES["delete_old"].run(connection, days=KEPT_DAYS)
                opened = await QUERIES["ask"].value(
                    connection, id=reload_id, actor=actor.name, group=group
                )
                if opened is not None:
                    await _notify(connection)
                    return reload_id
            if time.monotonic() > deadline_s:
                raise ConflictError("other reloads are under way; try again")
            await asyncio.sleep(POLL_S)

    async def _wait_for_answers(self, reload_id: UUID, group: int | None) -> bool:
        """Whether every process that runs has answered in time."""
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            async with self._database.connection() as connection:
                missing = await QUERIES["missing"].value(connection, id=reload_id, group=group)
            if missing == 0 or time.monotonic() > deadline_s:
                return bool(missing == 0)
            await asyncio.sleep(POLL_S)

    async def _decide(self, reload_id: UUID, actor: Actor, is_answered: bool) -> None:
        async with self._database.transaction() as connection:
            answers = await QUERIES["answers"].rows(connection, id=reload_id)
            reason = _refusal(answers, is_answered)
            status = ReloadStatus.TAKEN if reason is None else ReloadStatus.REFUSED
            decided = await QUERIES["decide"].value(
                connection, id=reload_id, status=status, reason=reason
            )
            if decided is not None:
                changed, restart = _united(answers)
                action = "settings_reloaded" if reason is None else "settings_refused"
                await record_action(
                    connection,
                    actor.name,
                    action,
                    changed=changed,
                    needs_restart=restart,
                    error=reason,
                )
            await _notify(connection)

    async def _read(self, reload_id: UUID) -> Reload:
        async with self._database.connection() as connection:
            row = await QUERIES["status"].row(connection, id=reload_id)
            answers = await QUERIES["answers"].rows(connection, id=reload_id)
        assert row is not None
        processes = [
            ProcessReload(
                one["process"],
                one["is_accepted"],
                one["reason"],
                one["changed"],
                one["needs_restart"],
                one["is_taken"],
            )
            for one in answers
        ]
        changed, restart = _united(answers)
        status = ReloadStatus(row["status"])
        return Reload(reload_id, status, row["reason"], changed, restart, processes)


def _refusal(answers: Sequence[Record], is_answered: bool) -> str | None:
    """Why nobody takes the new settings; None if all do."""
    if not answers and is_answered:
        return "no process runs"
    if refused := [f"{one['process']}: {one['reason']}" for one in answers if one["reason"]]:
        return "; ".join(refused)
    if not is_answered:
        return f"a process did not answer within {ANSWER_S:.0f} s; the log of it may say why"
    digests = defaultdict[int, set[bytes]](set)
    for one in answers:
        digests[one["process_group"]].add(one["digest"])
    if any(len(found) > 1 for found in digests.values()):
        return "the settings changed while they were read; try again"
    return None


def _united(answers: Sequence[Record]) -> tuple[list[str], list[str]]:
    """What changes, and what needs a restart, in any process."""
    changed = sorted({name for one in answers for name in one["changed"]})
    return changed, sorted({name for one in answers for name in one["needs_restart"]})


async def _notify(connection: Connection) -> None:
    await connection.execute(f"NOTIFY {CHANNEL}")
