"""Reconciles sources with their gateways' books: when somebody asks for it, and by a timer (PAY-9).

One process at a time works on a source, by a lock that ends with its session. What a killed one has
begun, the next one begins again; what is due by the timer, the table says.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce import telemetry
from paidonce.domain.events import SourceId
from paidonce.domain.notices import NoticeKind
from paidonce.engine.bell import Bell
from paidonce.engine.gateway_calls import SHARE_OF_RATE, Line, Patience, Telephone
from paidonce.engine.items import MAX_MESSAGE, Rules, Source
from paidonce.engine.reconciliation import Reconciliation
from paidonce.engine.repairs import Repairs
from paidonce.errors import GatewayError
from paidonce.providers.contract import Books
from paidonce.store import notices, reconciliations
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.listings import Row
from paidonce.store.notices import Notice
from paidonce.store.queries import Connection
from paidonce.store.reconciliations import Run
from paidonce.telemetry import logger

log = logger(__name__)

LOOK_S: Final = 2.0
"""How often to look whether somebody wants a reconciliation."""
PAUSE_AFTER_FAILURE_S: Final = 5.0
PUT_BACK_TIMEOUT_S: Final = 1.0
MAX_STARTS: Final = 3
"""How often a reconciliation may end its process before it is given up."""
SETTLING: Final = timedelta(minutes=10)
"""What is younger may still be on its way, and is not looked at."""
SOON: Final = timedelta(hours=1)
"""When the timer tries again what has failed."""
PAUSES_S: Final = (1.0, 5.0, 20.0)
"""Between attempts at one question."""
CALL_TIMEOUT_S: Final = 30.0
"""How long a page may take."""
MAX_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Timer:
    """How often a source is reconciled, and how far back."""

    every: timedelta
    window: timedelta


class Reconciler:
    """Works on what is wanted, one reconciliation after the other."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        bell: Bell,
        timers: Mapping[SourceId, Timer] | None = None,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._database = database
        self._rules = rules
        self._bell = bell
        self._timers = timers or {}
        self._pauses_s = pauses_s
        self._telephone = Telephone(Patience(call_s=CALL_TIMEOUT_S))
        self._survived: set[UUID] = set()

    async def run(self) -> NoReturn:
        """Work until cancelled. What is under way then is left to whoever comes next."""
        try:
            while True:
                pause_s = await self._work()
                await asyncio.sleep(pause_s)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Work on what is wanted, or due; returns how many reconciliations were finished."""
        await self._give_back_starts()
        await self._make_due()
        async with self._database.connection() as connection:
            wanted = await reconciliations.sources_with_work(connection)
        sources = [one for one in self._rules.sources.values() if one.id in wanted]
        books = [(source, source.provider.books()) for source in sources]
        return sum([await self._work_on(source, one) for source, one in books if one is not None])

    async def close(self) -> None:
        """Hang up."""
        await self._telephone.close()

    async def _work(self) -> float:
        """Returns how long there is nothing to do."""
        try:
            return 0.0 if await self.run_once() else LOOK_S
        except Exception as error:
            log.warning("reconciler_failed", exc_info=error)
            return PAUSE_AFTER_FAILURE_S

    async def _make_due(self) -> None:
        for source_id, timer in self._timers.items():
            async with self._database.connection() as connection:
                await reconciliations.add_timed(
                    connection,
                    run_id=uuid7(),
                    source_id=source_id,
                    every=timer.every,
                    soon=min(SOON, timer.every),
                    window=timer.window,
                    settling=SETTLING,
                )

    async def _work_on(self, source: Source, books: Books) -> bool:
        """Returns whether one was finished; not if another process is at it, or none is left."""
        session = await self._database.dedicated()
        try:
            if not await reconciliations.try_lock(session, source.id):
                return False
            run = await reconciliations.begin(session, source.id)
            if run is None:
                return False
            await self._finish(source, books, run, session)
            return True
        finally:
            session.terminate()

    async def _finish(self, source: Source, books: Books, run: Run, session: Connection) -> None:
        """Whatever happens, the run has an end, unless the database is away or we are to stop."""
        try:
            work = self._reconciliation(source, books, run, session)
            message = await self._failure(work, run)
            await work.finish(message)
        except asyncio.CancelledError:
            await self._put_back(run.id)
            raise
        except Exception:
            self._survived.add(run.id)
            raise
        log.info("reconciled", source=source.name, reconciliation=str(run.id), error=message)
        await self._tell_a_person(source, run.id)

    async def _failure(self, work: Reconciliation, run: Run) -> str | None:
        """Do the work; returns why it could not be done."""
        if run.starts > MAX_STARTS:
            return f"the process ended {run.starts - 1} times over it"
        try:
            await work.compare_all()
        except GatewayError as error:
            return f"the gateway was asked: {error}"[:MAX_MESSAGE]
        except Exception as error:
            if trouble(error) is Trouble.AWAY:
                raise
            log.error("reconciliation_failed", reconciliation=str(run.id), exc_info=error)
            return "it could not be done; the log has the details"
        return None

    def _reconciliation(
        self, source: Source, books: Books, run: Run, session: Connection
    ) -> Reconciliation:
        return Reconciliation(
            database=self._database,
            session=session,
            source=source,
            books=books,
            run=run,
            line=Line(self._telephone, source.ask_rate * SHARE_OF_RATE),
            repairs=Repairs(
                self._database, self._rules, source, books, self._bell, run.id, run.actor
            ),
            pauses_s=self._pauses_s,
        )

    async def _give_back_starts(self) -> None:
        """The database was away, and this process has not ended: that is not to be counted."""
        if self._survived:
            async with self._database.connection() as connection:
                await reconciliations.give_back_starts(connection, self._survived)
            self._survived.clear()

    async def _put_back(self, run_id: UUID) -> None:
        with contextlib.suppress(Exception):
            async with (
                asyncio.timeout(PUT_BACK_TIMEOUT_S),
                self._database.connection() as connection,
            ):
                await reconciliations.put_back(connection, run_id)

    async def _tell_a_person(self, source: Source, run_id: UUID) -> None:
        """Say which findings are new and were not repaired: somebody has to look at them."""
        async with self._database.transaction() as connection:
            found = await reconciliations.findings(connection, run_id, MAX_TOLD)
            new = [one for one in found if one["is_new"] and one["resolved_at"] is None]
            told = [_notice(source, run_id, one) for one in new]
            await notices.add(connection, self._rules.told_to, *told)
        for one in told:
            log.warning("reconciliation_finding", source=source.name, **one.details)


def _notice(source: Source, run_id: UUID, finding: Row) -> Notice:
    """A finding as people are told of it."""
    said = {
        "reconciliation": run_id,
        "external_payment_id": finding["external_id"],
        "kind": finding["kind"],
        "reason": finding["reason"],
    }
    return Notice(
        kind=NoticeKind.FINDING,
        at=datetime.now(UTC),
        source=source.name,
        payment_id=finding["payment_id"],
        details={name: telemetry.masked(str(value)) for name, value in said.items()},
    )
