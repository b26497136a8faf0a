"""One reconciliation: a gateway's books held against ours, from the first page to the report.

What does not agree at first sight is only a doubt: while the statement is read, payments go on. A
doubt is judged as often as needed, always in one way: ours is read, and where the gateway seems to
say less than that, it is asked for that very payment *after* ours was read. Facts only grow, so
what it does not say then, it does not know. Everything may be done again from the beginning, and
comes to the same end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.domain.events import EventId, ExternalId, PaymentEvent
from paidonce.domain.payments import Facts
from paidonce.domain.reconciling import REPAIRABLE, Finding, Tally, compare
from paidonce.engine.conversations import converse
from paidonce.engine.gateway_calls import Line
from paidonce.engine.items import Source
from paidonce.engine.repairs import Repair, Repairs, repair_key
from paidonce.errors import GatewayError, GatewayMismatchError, GatewayUnreachableError
from paidonce.providers.contract import Books, Call, Page, PageTurn, Reply
from paidonce.store import reconciliations
from paidonce.store.db import Database
from paidonce.store.listings import first_id_at
from paidonce.store.queries import Connection
from paidonce.store.reconciliations import Found, Known, Run

MAX_PAGES: Final = 100_000
MAX_DOUBTS: Final = 500
"""How many doubts are put off, and then cleared together."""
MAX_REPAIRS: Final = 3
"""How often a payment is repaired of which the gateway says ever more."""
MAX_LOOKED_UP: Final = 1_000
"""How many payments are asked for one by one. More means that it is not the right statement."""
MAX_LOOKED_AT_AGAIN: Final = 1_000
"""How many open findings are looked at again; those that wait longest are first."""
WALK_PAGE: Final = 1_000
BEFORE_PAID: Final = timedelta(days=30)
"""How long before it was paid a payment of ours may have been heard of."""

T = TypeVar("T")

REASONS: Final = {
    Finding.BEHIND: "the gateway says more than is known here",
    Finding.DIFFERS: "the gateway says less than is known here, or something else",
    Finding.MISSING_HERE: "no webhook told of it",
    Finding.MISSING_THERE: "the gateway does not know it",
}


@dataclass(frozen=True, slots=True)
class Doubt:
    """A payment of which the two sides may say different things."""

    ids: tuple[ExternalId, ...]
    entry: PaymentEvent | None  # what the gateway said last; None: it is to be asked
    reported: PaymentEvent | None = None  # what its statement says
    is_new: bool = True  # whether it is of this time, and not left open by an earlier run
    is_counted: bool = True  # whether it was not compared already
    known: Known | None = None  # here, when it was judged
    finding: Finding | None = None
    reason: str = ""
    repair: Repair | None = None  # the last that was made

    @property
    def id(self) -> ExternalId:
        return self.ids[0]


@dataclass(slots=True)
class Reconciliation:
    """One run. `session` is a connection of its own, which holds the source's lock."""

    database: Database
    session: Connection
    source: Source
    books: Books
    run: Run
    line: Line
    repairs: Repairs
    pauses_s: Sequence[float]
    tally: Tally = field(default_factory=Tally)
    _doubts: list[Doubt] = field(default_factory=list)
    _looked_up: int = 0

    async def compare_all(self) -> None:
        """Compare, and repair what can be. Raises GatewayError; what was found is kept."""
        await reconciliations.forget_named(self.session)
        try:
            async for page in self._pages():
                await self._compare(page)
                await self._tell_progress()
        except GatewayError:
            with contextlib.suppress(GatewayError):
                await self._clear_doubts()  # a repair that is stored is tried for days
            raise
        await self._clear_doubts()
        await self._walk_ours()
        await self._look_at_what_is_open()

    async def finish(self, error_message: str | None = None) -> None:
        """Keep the report."""
        async with self.database.connection() as connection:
            await reconciliations.finish(
                connection, self.run.id, self.source.id, self.tally, error_message
            )

    # The gateway's side

    async def _pages(self) -> AsyncIterator[Page]:
        follows: Callable[[], PageTurn] | None = self._first_page
        for _ in range(MAX_PAGES):
            if follows is None:
                return
            page = await self._converse(follows)
            yield page
            follows = page.follows
        raise GatewayUnreachableError(f"its statement has more than {MAX_PAGES} pages")

    def _first_page(self) -> PageTurn:
        return self.books.statement(self.run.since, self.run.until)

    async def _compare(self, page: Page) -> None:
        self.tally.unreadable += page.unreadable
        ids = [entry.ids[0] for entry in page.entries]
        new = await reconciliations.name(self.session, ids) if ids else set()
        entries = {entry.ids[0]: entry for entry in page.entries if entry.ids[0] in new}
        known = await self._known([one for entry in entries.values() for one in entry.ids])
        for entry in entries.values():
            self.tally.report(entry)
            if compare(_facts(_of(entry.ids, known)), entry, self.run.now) is None:
                self.tally.agree(entry)
            else:
                self._doubts.append(Doubt(entry.ids, entry, entry))
        if len(self._doubts) >= MAX_DOUBTS:
            await self._clear_doubts()

    # Our side

    async def _walk_ours(self) -> None:
        """Look for payments of the time that the statement does not name."""
        after: UUID | None = first_id_at(self.run.since - BEFORE_PAID)
        while after is not None:
            unnamed, after = await reconciliations.walk(
                self.session, self.source.id, self.run.since, self.run.until, after, WALK_PAGE
            )
            async with self.database.connection() as connection:
                ids = await reconciliations.ids_of(connection, unnamed)
            self._doubts += [Doubt(tuple(one), None) for one in ids.values()]
            self.tally.compared += len(ids)
            await self._clear_doubts()

    async def _look_at_what_is_open(self) -> None:
        """Look again at what was found earlier, and has not been seen since this began.

        It may be of any time, and says nothing against the statement; so it has its own limit.
        """
        left = await reconciliations.open_before(
            self.session, self.source.id, self.run.now, MAX_LOOKED_AT_AGAIN
        )
        self.tally.compared += sum(not one.is_named for one in left)
        self._doubts = [
            Doubt((one.id,), None, is_new=False, is_counted=not one.is_named) for one in left
        ]
        await self._clear_doubts()

    # Doubts

    async def _clear_doubts(self) -> None:
        doubts, self._doubts = self._doubts, []
        for start in range(0, len(doubts), MAX_DOUBTS):
            await self._clear(doubts[start : start + MAX_DOUBTS])
        await self._tell_progress()

    async def _clear(self, doubts: Sequence[Doubt]) -> None:
        """Repair what can be repaired, and keep what cannot."""
        left = await self._judge_all(doubts)
        for _ in range(MAX_REPAIRS):
            left = await self._judge_all(left)  # webhooks may have come while others were judged
            if not left:
                return
            left = await self._judge_all(await self._repair(left))
        for doubt in left:
            await self._conclude(doubt)

    async def _judge_all(self, doubts: Sequence[Doubt]) -> list[Doubt]:
        """Those that are to be repaired. The others are concluded."""
        to_repair = []
        for doubt in doubts:
            judged = await self._judge(doubt)
            if self._is_to_be_repaired(judged):
                to_repair.append(judged)
            else:
                await self._conclude(judged)
        return to_repair

    async def _judge(self, doubt: Doubt) -> Doubt:
        """What is to be found of it now. The gateway is asked after ours was read, never before.

        What it said earlier it still says, so that only what it did not say has to be asked for.
        """
        known = _of(doubt.ids, await self._known(doubt.ids))
        if doubt.entry is not None:
            finding = compare(_facts(known), doubt.entry, self.run.now)
            if finding is None or finding in REPAIRABLE:
                return replace(doubt, known=known, finding=finding)
        try:
            entry = await self._look_up(doubt)
        except GatewayMismatchError as error:
            return replace(doubt, known=known, finding=Finding.DIFFERS, reason=str(error))
        finding = compare(_facts(known), entry, self.run.now)
        return replace(doubt, entry=entry, known=known, finding=finding, reason="")

    def _is_to_be_repaired(self, judged: Doubt) -> bool:
        """Whether it can be, and the same has not been tried already."""
        made, entry = judged.repair, judged.entry
        if not self.run.repairs or judged.finding not in REPAIRABLE or entry is None:
            return False
        return made is None or repair_key(made.entry) != repair_key(entry)

    async def _look_up(self, doubt: Doubt) -> PaymentEvent | None:
        self._looked_up += doubt.is_new
        if self._looked_up > MAX_LOOKED_UP:
            raise GatewayUnreachableError(
                f"its statement does not agree with more than {MAX_LOOKED_UP} payments that are "
                "known here; is it of the same account?"
            )
        return await self._converse(lambda: self.books.look_up(doubt.ids))

    async def _repair(self, doubts: Sequence[Doubt]) -> list[Doubt]:
        """Settle what the gateway says. It is kept as found before, lest a crash hides it."""
        repairs = []
        for doubt in doubts:
            assert doubt.entry is not None
            repair = Repair(EventId(uuid7()), doubt.entry)
            repairs.append(repair)
            await self._conclude(replace(doubt, repair=repair))
        event_ids = await self.repairs.store(repairs)
        became = await self.repairs.settled(event_ids)
        return [
            replace(
                doubt,
                repair=replace(repair, event_id=event_id),
                reason=f"its repair came to {became.get(event_id, 'nothing')}",
            )
            for doubt, repair, event_id in zip(doubts, repairs, event_ids, strict=True)
        ]

    async def _conclude(self, doubt: Doubt) -> None:
        """Keep what is found; what was found earlier and is not so any more is resolved."""
        finding = doubt.finding
        async with self.database.transaction() as connection:
            if finding is not None:
                found = _found(doubt, finding)
                await reconciliations.keep(connection, self.run.id, self.source.id, found)
            await reconciliations.resolve(
                connection, self.run.id, self.source.id, doubt.id, finding
            )
        if finding is None and doubt.is_counted:
            self.tally.agree(doubt.reported)

    async def _known(self, ids: Sequence[ExternalId]) -> dict[ExternalId, Known]:
        if not ids:
            return {}
        async with self.database.connection() as connection:
            return await reconciliations.known_payments(connection, self.source.id, ids)

    async def _tell_progress(self) -> None:
        async with self.database.connection() as connection:
            await reconciliations.progress(connection, self.run.id, self.tally)

    async def _converse(self, begin: Callable[[], Generator[Call, Reply, T]]) -> T:
        """What the gateway says, asked again after each pause if it does not answer."""
        for pause_s in self.pauses_s:
            try:
                return await converse(begin(), self.line)
            except GatewayUnreachableError:
                await asyncio.sleep(pause_s)
        return await converse(begin(), self.line)


def _found(doubt: Doubt, finding: Finding) -> Found:
    entry, known = doubt.entry, doubt.known
    return Found(
        id=doubt.id,
        kind=finding,
        reason=doubt.reason or REASONS[finding],
        known=known,
        order=entry.order if entry else known.order if known else None,
        reported=entry.amount if entry else None,
        refunded_minor=entry.refunded.amount_minor if entry and entry.refunded else 0,
        repair=doubt.repair.event_id if doubt.repair else None,
    )


def _of(ids: Sequence[ExternalId], known: dict[ExternalId, Known]) -> Known | None:
    return next((known[one] for one in ids if one in known), None)


def _facts(known: Known | None) -> Facts | None:
    return None if known is None else known.facts
