"""Dry run: what processing events again would change (OPS-4).

It locks nothing, writes nothing, calls no handler and makes no lookup. Events of one chunk see each
other's effects; events of earlier chunks have had none. So the dry run remembers which payments
those would have applied, and counts no payment twice.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from paidonce.core.events import EventId
from paidonce.core.money import Money
from paidonce.core.payments import Payment
from paidonce.core.state import Applied
from paidonce.db.queries import Connection
from paidonce.hooks.registry import hook_calls
from paidonce.processing.items import Item, Result, Rules
from paidonce.processing.process import dry_run
from paidonce.providers.contract import LookupRequired
from paidonce.queue import store
from paidonce.queue.claims import read_claimed
from paidonce.queue.store import StoredEvent
from paidonce.replay.model import ReprocessKind, ReprocessResult, SignatureCheck, reprocess_result
from paidonce.replay.verify import needs_lookup, verify, verify_refused

MAX_REMEMBERED: Final = 1_000_000
"""How many identifiers of payments are remembered. Beyond that, a payment may be counted twice."""


class DryRun:
    """Evaluates events, a chunk at a time, and remembers which payments they would apply."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._applied: set[int] = set()

    async def run(
        self, connection: Connection, event_ids: Sequence[EventId]
    ) -> list[ReprocessResult]:
        """The results that processing these events now would have."""
        done: list[ReprocessResult] = []
        to_process: list[tuple[StoredEvent, Item, SignatureCheck]] = []
        for stored in await store.read(connection, event_ids):
            prepared = self._prepare(stored)
            if isinstance(prepared, ReprocessResult):
                done.append(prepared)
            else:
                to_process.append((stored, *prepared))
        processed = await dry_run(connection, [item for _, item, _ in to_process], self._rules)
        for result, (stored, _, signature) in zip(processed.results, to_process, strict=True):
            done.append(self._evaluate(stored, signature, result))
        return sorted(done, key=lambda one: one.stored.event_id)

    def _prepare(self, stored: StoredEvent) -> ReprocessResult | tuple[Item, SignatureCheck]:
        """What to process; a result if that is known already."""
        if stored.is_erased:
            return ReprocessResult(stored, ReprocessKind.ERASED, code=stored.error_code)
        source = self._rules.sources.get(stored.source_id)
        if source is None:
            return ReprocessResult(stored, ReprocessKind.SOURCE_UNKNOWN)
        if not stored.is_accepted:
            found = verify_refused(source, stored)
            if isinstance(found, tuple) and isinstance(found[0].event, LookupRequired):
                return ReprocessResult(stored, ReprocessKind.NEEDS_LOOKUP)
            return found
        if needs_lookup(source, stored):
            return ReprocessResult(stored, ReprocessKind.NEEDS_LOOKUP)
        (item,) = read_claimed([replace(stored, queue_name=source.queue_name)], self._rules)
        return item, verify(source, stored)

    def _evaluate(
        self, stored: StoredEvent, signature: SignatureCheck, result: Result
    ) -> ReprocessResult:
        done = reprocess_result(stored, signature, result)
        kind = ReprocessKind.CALLS_HANDLERS if self._calls_handlers(result) else done.kind
        return replace(done, kind=kind, applied=tuple(self._newly_applied(result)))

    def _newly_applied(self, result: Result) -> Iterator[Money]:
        """What would be applied, without payments that an earlier event would have applied."""
        for done in result.decision.effects if result.decision else ():
            captured = done.payment.facts.captured
            names = {hash(name) for name in _names(done.payment)}
            is_new = self._applied.isdisjoint(names)
            if isinstance(done, Applied) and is_new and captured is not None:
                yield captured
            if isinstance(done, Applied) and len(self._applied) < MAX_REMEMBERED:
                self._applied |= names

    def _calls_handlers(self, result: Result) -> bool:
        handlers = self._rules.handlers
        if not handlers or result.decision is None:
            return False
        return any(
            handlers.by_type.get(hook_type) for hook_type, _, _ in hook_calls(result.decision)
        )


def _names(payment: Payment) -> Iterator[Hashable]:
    """Identifiers that no other payment has. A new payment has another id in each dry run."""
    yield payment.id
    yield from ((payment.source_id, one) for one in payment.ids)
    if payment.order is not None:
        yield "order", payment.order
