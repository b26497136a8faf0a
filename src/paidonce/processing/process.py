"""`process` turns a batch of events into rows. There is no other path by which money moves.

The inbox calls it with deliveries, the worker with queued events, an operator's request with the
payments that it touches. Providers translate deliveries into events before. Then:

1. *load*: one statement loads every row that the batch touches (`store.py`);
2. *decide*: item by item, in memory, without I/O (`batch.py`, `core/decide.py`);
3. *write*: one statement for the rows that every batch has, further ones for the rare rows.

`process` locks the rows, in the transaction of the caller. `process_without_locks` is for batches
that probably have their rows to themselves: it writes a row only if its version is unchanged, and
otherwise nothing at all. Usually that takes two round trips, and the second one is the transaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import assert_never

from paidonce.core.email import email_key
from paidonce.core.events import Ignored, PaymentEvent
from paidonce.core.orders import Kind
from paidonce.core.problems import blocked_on_email, blocked_on_order
from paidonce.core.state import GrantsMissingError
from paidonce.db.queries import Connection
from paidonce.processing import store
from paidonce.processing.batch import Batch
from paidonce.processing.items import (
    BatchResult,
    FreeOrder,
    Incoming,
    Item,
    QueuedEvent,
    Reapply,
    Rejected,
    Rules,
    Source,
)
from paidonce.processing.nonces import has_nonces, refuse_replays
from paidonce.processing.store import Changes, Loaded, LoadKeys
from paidonce.providers.contract import LookupRequired
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash

Load = Callable[[Connection, LoadKeys, Rules], Awaitable[Loaded]]


async def process(connection: Connection, items: Sequence[Item], rules: Rules) -> BatchResult:
    """Process the items in their order, in the open transaction of the connection.

    Fails with a serialization failure when another transaction was first: roll back, call again.
    """
    items = await refuse_replays(connection, items)
    processed, changes = await _load_and_decide(connection, items, rules)
    await store.write(connection, changes, processed.now)
    maybe_crash(CrashPoint.WRITTEN)
    return processed


async def process_without_locks(
    connection: Connection, items: Sequence[Item], rules: Rules
) -> BatchResult | None:
    """Process and commit without locks. None, and nothing is written, when that would not be safe.

    Fails with a serialization failure when another transaction was first.
    """
    if has_nonces(items):
        return None  # they are recorded in a transaction with the events
    keys = _load_keys(items)
    loaded = await store.load_without_locks(connection, keys, rules)
    if _missing_names(keys, loaded, rules):
        return None  # their names have to be locked: see _load
    maybe_crash(CrashPoint.LOADED)
    try:
        processed, changes = _decide(items, rules, loaded)
    except GrantsMissingError:
        return None  # they are loaded while the subscription is locked
    if changes.is_one_statement:
        await store.write(connection, changes, loaded.now)
    else:
        async with connection.transaction():
            await store.write(connection, changes, loaded.now)
            maybe_crash(CrashPoint.WRITTEN)
    return processed


async def dry_run(connection: Connection, items: Sequence[Item], rules: Rules) -> BatchResult:
    """The result of processing the items now. Locks and writes nothing."""
    items = await refuse_replays(connection, items, record=False)
    processed, _ = await _load_and_decide(connection, items, rules, store.load_without_locks)
    return processed


def _decide(items: Sequence[Item], rules: Rules, loaded: Loaded) -> tuple[BatchResult, Changes]:
    batch = Batch(rules, loaded)
    results = [batch.process(item) for item in items]
    changes = batch.changes()
    return BatchResult(loaded.now, results, changes.schedules), changes


async def _load_and_decide(
    connection: Connection, items: Sequence[Item], rules: Rules, load: Load | None = None
) -> tuple[BatchResult, Changes]:
    """Decide with all rows that are needed. Few items need more than their own."""
    keys = _load_keys(items)
    while True:
        loaded = await (load or _load)(connection, keys, rules)
        maybe_crash(CrashPoint.LOADED)
        try:
            return _decide(items, rules, loaded)
        except GrantsMissingError as missing:  # once for each subscription at the most
            found = await store.load_grants(connection, missing.subscription_id)
            keys.grants[missing.subscription_id] = found


async def _load(connection: Connection, keys: LoadKeys, rules: Rules) -> Loaded:
    loaded = await store.load(connection, keys, rules)
    missing = _missing_names(keys, loaded, rules)
    if missing:
        # A missing user or order might be created between this load and our commit, and neither
        # transaction would see the other. Whoever creates one locks its name exclusively and then
        # looks for blocked events. So with the shared lock, either we see the new row in a second
        # load, or the other transaction sees our queued event. A name that cannot be locked is
        # being created right now: events that need it are locked.
        secured = await store.try_lock_names_shared(connection, missing)
        loaded = await store.load(connection, keys, rules)
        unsecured = frozenset(_missing_names(keys, loaded, rules) - secured)
        loaded = replace(loaded, locked=replace(loaded.locked, names=unsecured))
    return loaded


def _missing_names(keys: LoadKeys, loaded: Loaded, rules: Rules) -> set[str]:
    """The names of the users and orders that items or loaded rows refer to and do not exist."""
    state = loaded.state
    emails, references = set(keys.emails), set(keys.references)
    for payment in state.payments.values():
        if payment.order is not None:
            references.add(payment.order)
        elif payment.user_id is None and payment.email is not None:
            source = rules.sources.get(payment.source_id)
            if source is not None and source.link_by_email:
                emails.add(email_key(payment.email))
    for order in state.orders.values():
        needs_user = order.kind is Kind.SUBSCRIPTION and order.user_id is None
        if needs_user and order.email is not None:
            emails.add(email_key(order.email))
    references -= state.orders.keys() | loaded.locked.orders
    missing = {blocked_on_email(one) for one in emails - state.users.keys()}
    return missing | {blocked_on_order(one) for one in references}


def _load_keys(items: Sequence[Item]) -> LoadKeys:
    keys = LoadKeys()
    for item in items:
        match item:
            case Incoming():
                keys.keys.add(item.key)
                if item.forced_outcome is None:
                    _add_event(keys, item.source, item.event)
            case QueuedEvent():
                if item.forced_outcome is None:
                    _add_event(keys, item.source, item.event)
            case Reapply():
                keys.payments.add(item.payment_id)
                if item.link is not None and item.link.user_id is not None:
                    keys.users.add(item.link.user_id)
                if item.link is not None and item.link.order is not None:
                    keys.references.add(item.link.order)
            case FreeOrder():
                keys.references.add(item.reference)
            case Rejected():
                if item.key is not None:
                    keys.keys.add(item.key)
                if item.event is not None:
                    _add_event(keys, item.source, item.event)
            case _:
                assert_never(item)
    return keys


def _add_event(
    keys: LoadKeys, source: Source, event: PaymentEvent | Ignored | LookupRequired
) -> None:
    if not isinstance(event, PaymentEvent) or source.is_payout_source:
        return
    keys.ids.update((source.id, one) for one in event.ids)
    if event.order is not None:
        keys.references.add(event.order)
    elif event.email is not None and source.link_by_email:
        keys.emails.add(email_key(event.email))
