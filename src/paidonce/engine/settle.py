"""`settle` turns a batch of events into state. There is no other path by which money moves.

Intake calls it with what just arrived, the worker with what is due again, an operator's request
with what it touches. It has four steps:

1. what the events say is there already: providers translate before a transaction begins;
2. *load*: one statement fetches every row that the batch touches;
3. *decide*: each event in turn, in memory, without I/O (`batch.py`, and `domain/decide.py`);
4. *write*: one statement for the rows that every batch has, a few more for the unusual ones.

`settle` does this under row locks in the caller's transaction. `settle_at_once` does it without
locks, for batches that are likely to have their rows to themselves: every row is written only if
it is still as it was seen, and otherwise nothing is written at all. Usually that is two round
trips, and the second one is the whole transaction.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from paidonce.crashpoints import Point, passing
from paidonce.domain.applying import waits_for_email, waits_for_order
from paidonce.domain.email import email_key
from paidonce.domain.events import Ignored, PaymentEvent
from paidonce.domain.orders import Kind
from paidonce.domain.payments import Payment
from paidonce.engine.batch import Batch
from paidonce.engine.items import (
    Incoming,
    Item,
    Refused,
    Revisit,
    Rules,
    Settled,
    Source,
    Waiting,
)
from paidonce.engine.nonces import has_nonces, without_replays
from paidonce.providers.contract import Thin
from paidonce.store import settlement
from paidonce.store.queries import Connection
from paidonce.store.settlement import Loaded, Wanted


async def settle(connection: Connection, items: Sequence[Item], rules: Rules) -> Settled:
    """Settle the items in their order, in the transaction that is open on the connection.

    Fails with a serialization failure when another transaction was first: roll back, call again.
    """
    items = await without_replays(connection, items)
    loaded = await _load(connection, items, rules)
    passing(Point.LOADED)
    settled, changes = _decided(items, rules, loaded)
    await settlement.write(connection, changes, loaded.now)
    passing(Point.WRITTEN)
    return settled


async def settle_at_once(
    connection: Connection, items: Sequence[Item], rules: Rules
) -> Settled | None:
    """Settle and commit without locks; None, and nothing done, when that would not be safe.

    Fails with a serialization failure when another transaction was first.
    """
    if has_nonces(items):
        return None  # they are recorded in a transaction with the events
    wanted = _wanted(items)
    loaded = await settlement.look(connection, wanted)
    if _absent(wanted, loaded, rules):
        return None  # who waits for a user has to hold its lock: see _load
    passing(Point.LOADED)
    settled, changes = _decided(items, rules, loaded)
    if changes.is_one_statement:
        await settlement.write(connection, changes, loaded.now)
    else:
        async with connection.transaction():
            await settlement.write(connection, changes, loaded.now)
            passing(Point.WRITTEN)
    return settled


async def foresee(connection: Connection, items: Sequence[Item], rules: Rules) -> Settled:
    """What settling the items would come to now. Nothing is locked, and nothing is written."""
    items = await without_replays(connection, items, records=False)
    loaded = await settlement.look(connection, _wanted(items))
    settled, _ = _decided(items, rules, loaded)
    return settled


def _decided(
    items: Sequence[Item], rules: Rules, loaded: Loaded
) -> tuple[Settled, settlement.Changes]:
    batch = Batch(rules, loaded)
    verdicts = [batch.judge(item) for item in items]
    changes = batch.all_changes()
    return Settled(loaded.now, verdicts, changes.schedules), changes


async def _load(connection: Connection, items: Sequence[Item], rules: Rules) -> Loaded:
    wanted = _wanted(items)
    loaded = await settlement.load(connection, wanted)
    absent = _absent(wanted, loaded, rules)
    if absent:
        # Between the look and the commit such a user or order might be created, and neither side
        # would see the other. Whoever creates one takes this lock exclusively, and only then looks
        # for what waits; so either we see it now, or he sees what we leave. Where that cannot be
        # said, because he is just about it, it is unsure, and the events that need it are busy.
        sure = await settlement.share_absence(connection, absent)
        loaded = await settlement.load(connection, wanted)
        loaded = replace(loaded, unsure=frozenset(_absent(wanted, loaded, rules) - sure))
    return loaded


def _absent(wanted: Wanted, loaded: Loaded, rules: Rules) -> set[str]:
    """The names of the users and orders that were asked for, by events or rows, and not found."""
    emails, references = set(wanted.emails), set(wanted.references)
    for payment in loaded.payments.values():
        if payment.order is not None:
            references.add(payment.order)
        elif payment.user_id is None and payment.email is not None and _links(payment, rules):
            emails.add(email_key(payment.email))
    for order in loaded.orders.values():
        is_for_user = order.kind is Kind.SUBSCRIPTION and order.user_id is None
        if is_for_user and order.email is not None:
            emails.add(email_key(order.email))
    missing = {waits_for_email(one) for one in emails - loaded.users.keys()}
    known = loaded.orders.keys() | loaded.busy_orders
    return missing | {waits_for_order(one) for one in references - known}


def _links(payment: Payment, rules: Rules) -> bool:
    source = rules.sources.get(payment.source_id)
    return source is not None and source.link_by_email


def _wanted(items: Sequence[Item]) -> Wanted:
    wanted = Wanted()
    for item in items:
        match item:
            case Incoming():
                wanted.keys.add(item.key)
                if item.preset is None:
                    _want_event(wanted, item.source, item.event)
            case Waiting():
                if item.preset is None:
                    _want_event(wanted, item.source, item.event)
            case Revisit():
                wanted.payments.add(item.payment_id)
                if item.link is not None and item.link.user_id is not None:
                    wanted.users.add(item.link.user_id)
                if item.link is not None and item.link.order is not None:
                    wanted.references.add(item.link.order)
            case Refused():
                if item.event is not None and item.key is not None:
                    wanted.keys.add(item.key)
                    _want_event(wanted, item.source, item.event)
            case _:
                assert_never(item)
    return wanted


def _want_event(wanted: Wanted, source: Source, event: PaymentEvent | Ignored | Thin) -> None:
    if not isinstance(event, PaymentEvent) or source.is_calling_back:
        return
    wanted.ids.update((source.id, one) for one in event.ids)
    if event.order is not None:
        wanted.references.add(event.order)
    elif event.email is not None and source.link_by_email:
        wanted.emails.add(email_key(event.email))
