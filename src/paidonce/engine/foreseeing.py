"""What processing events again would come to: shown, and not done (OPS-4).

Nothing is locked and nothing is written; no handler is called, and no gateway is asked. A few
events are looked at together and see each other's effects. Those that were looked at before have
had none: so which payments they would have applied is remembered, and no payment is counted twice.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from paidonce.domain.events import EventId
from paidonce.domain.money import Money
from paidonce.domain.payments import Payment
from paidonce.domain.state import Applied
from paidonce.engine.fates import Again, Fate, settled_again
from paidonce.engine.handlers import happenings
from paidonce.engine.items import Item, Rules, Verdict
from paidonce.engine.reprocessing import is_accepted, is_thin, lane_of, verified_evidence
from paidonce.engine.settle import foresee
from paidonce.engine.verifying import Signature, verified_again
from paidonce.engine.waiting import waiting_items
from paidonce.providers.contract import Thin
from paidonce.store import reprocessing
from paidonce.store.queries import Connection
from paidonce.store.reprocessing import Stored

MAX_REMEMBERED: Final = 1_000_000
"""How many names of payments are remembered; of more, a payment may be counted again."""


class Foresight:
    """Looks at events, a few at a time, and remembers which payments they would apply."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._applied: set[int] = set()

    async def look(self, connection: Connection, event_ids: Sequence[EventId]) -> list[Again]:
        """What would become of these events if they were processed again now."""
        done: list[Again] = []
        open_cases: list[tuple[Item, Stored, Signature]] = []
        for stored in await reprocessing.look(connection, event_ids):
            found = self._item(stored)
            if isinstance(found, Again):
                done.append(found)
            else:
                open_cases.append((found[0], stored, found[1]))
        items = [item for item, _, _ in open_cases]
        settled = await foresee(connection, items, self._rules)
        for verdict, (_, stored, signature) in zip(settled.verdicts, open_cases, strict=True):
            done.append(self._judged(stored, signature, verdict))
        return sorted(done, key=lambda one: one.stored.event_id)

    def _item(self, stored: Stored) -> Again | tuple[Item, Signature]:
        """What is to be settled, unless it is clear without that what becomes of the event."""
        source = self._rules.sources.get(stored.source_id)
        if source is None:
            return Again(stored, Fate.FOREIGN)
        if not is_accepted(stored):
            found = verified_evidence(stored, source)
            is_asked = isinstance(found, tuple) and isinstance(found[0].event, Thin)
            return Again(stored, Fate.ASKED) if is_asked else found
        if is_thin(stored, self._rules):
            return Again(stored, Fate.ASKED)
        claimed = stored.claimed(lane_of(stored, self._rules))
        (item,) = waiting_items([claimed], self._rules)
        return item, verified_again(source, stored)

    def _judged(self, stored: Stored, signature: Signature, verdict: Verdict) -> Again:
        again = replace(
            settled_again(stored, signature, verdict), applied=tuple(self._newly_applied(verdict))
        )
        return replace(again, fate=Fate.HANDLED) if self._calls_handlers(verdict) else again

    def _newly_applied(self, verdict: Verdict) -> Iterator[Money]:
        """What would be applied, without what an event before it would have applied already."""
        for done in verdict.decision.done if verdict.decision else ():
            captured = done.payment.facts.captured
            names = {hash(name) for name in _names(done.payment)}
            is_new = self._applied.isdisjoint(names)
            if isinstance(done, Applied) and is_new and captured is not None:
                yield captured
            if isinstance(done, Applied) and len(self._applied) < MAX_REMEMBERED:
                self._applied |= names

    def _calls_handlers(self, verdict: Verdict) -> bool:
        handlers = self._rules.handlers
        if not handlers or verdict.decision is None:
            return False
        return any(handlers.of.get(occasion) for occasion, _, _ in happenings(verdict.decision))


def _names(payment: Payment) -> Iterator[Hashable]:
    """What no other payment would be applied under. One that is new has another id each time."""
    yield payment.id
    yield from ((payment.source_id, one) for one in payment.ids)
    if payment.order is not None:
        yield "order", payment.order
