"""The schema asserts too: one computed status, and no row that contradicts itself."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.core.events import EventStatus
from paidonce.core.facts import Facts, PaymentStatus
from paidonce.core.money import Money
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.schema import ensure_partitions

NOW = datetime(2026, 11, 15, tzinfo=UTC)
DIGEST = b"d" * 16
PENDING = (EventStatus.VALIDATED, EventStatus.FAILED_RETRYABLE)


@pytest_asyncio.fixture(loop_scope="session")
async def connection(module_database: Database) -> AsyncIterator[Connection]:
    """A connection in a transaction that is undone after the test, with a source of id 1."""
    async with module_database.connection() as opened:
        transaction = opened.transaction()
        await transaction.start()
        await ensure_partitions(opened, NOW)
        await opened.execute(
            "INSERT INTO sources (id, name, provider) OVERRIDING SYSTEM VALUE"
            " VALUES (1, 'korea', 'portone')"
        )
        await opened.execute("SELECT setval(pg_get_serial_sequence('sources', 'id'), 1)")
        yield opened
        await transaction.rollback()


async def insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    columns, places = ", ".join(row), ", ".join(f"${number + 1}" for number in range(len(row)))
    statement = f"INSERT INTO {table} ({columns}) VALUES ({places})"
    async with connection.transaction():  # a savepoint: a refusal does not end the test
        await connection.execute(statement, *row.values())


async def test_the_computed_status_is_the_domains_for_all_facts(connection: Connection) -> None:
    """PAY-2: the rule is written twice, and this holds the two together."""
    expected: dict[UUID, PaymentStatus] = {}
    rows = []
    flags = (None, NOW)
    for captured, total, by_ids in product((0, 1, 100), (0, 1, 99, 100, 101), (0, 1, 100)):
        for paid, failed, voided, canceled, refunded, processing in product(*[flags] * 6):
            facts = Facts(
                captured=Money(captured, "RUB") if captured else None,
                refund_total_minor=total,
                refunds={"r": by_ids} if by_ids else {},
                paid_at=paid,
                failed_at=failed,
                voided_at=voided,
                canceled_at=canceled,
                refunded_at=refunded,
                processing_at=processing,
            )
            payment_id = uuid7()
            expected[payment_id] = facts.status
            currency = "RUB" if captured else None
            sums = (captured, total, facts.refunded_minor)
            times = (paid, failed, voided, canceled, refunded, processing)
            rows.append((payment_id, 1, currency, *sums, *times, 1))
    await connection.copy_records_to_table(
        "payments",
        records=rows,
        columns=(
            "id", "source_id", "currency", "captured_minor", "refund_total_minor",
            "refunded_minor", "paid_at", "failed_at", "voided_at", "canceled_at", "refunded_at",
            "processing_at", "version",
        ),
    )  # fmt: skip
    found = {row["id"]: row["status"] for row in await connection.fetch("SELECT * FROM payments")}
    assert found == expected
    assert set(found.values()) == set(PaymentStatus)


async def test_the_status_of_a_payment_cannot_be_set(connection: Connection) -> None:
    """PAY-2: computed, never set."""
    await insert(connection, "payments", PAYMENT)
    with pytest.raises(asyncpg.GeneratedAlwaysError):
        await connection.execute("UPDATE payments SET status = 'REFUNDED'")


EVENT: dict[str, Any] = {
    "id": uuid7(),
    "source_id": 1,
    "status": "PROCESSED",
    "signature_valid": True,
    "signature_method": "hmac",
    "is_test": False,
    "attempts": 1,
    "received_at": NOW,
    "processed_at": NOW,
    "request_id": "r",
    "headers": "{}",
    "raw_body": b"",
}
PAYMENT: dict[str, Any] = {
    "id": UUID(int=1),
    "source_id": 1,
    "currency": "RUB",
    "captured_minor": 100,
    "refund_total_minor": 0,
    "refunded_minor": 0,
    "version": 1,
}
USER: dict[str, Any] = {"id": UUID(int=5), "email": "A@b"}
EMAIL: dict[str, Any] = {
    "email_key": "a@b",
    "email": "A@b",
    "user_id": UUID(int=5),
    "is_current": True,
}
SUBSCRIPTION: dict[str, Any] = {
    "id": UUID(int=2),
    "user_id": USER["id"],
    "product": "default",
    "status": "ACTIVE",
    "current_period_end": NOW,
    "version": 1,
}
ORDER: dict[str, Any] = {
    "id": UUID(int=3),
    "reference": "o-1",
    "kind": "order",
    "status": "PENDING",
    "amount_minor": 1,
    "currency": "RUB",
    "request_hash": b"",
    "version": 1,
}
KEY: dict[str, Any] = {
    "source_id": 1,
    "digest": DIGEST,
    "event_id": UUID(int=4),
    "fingerprint": DIGEST,
    "fingerprint_version": 1,
}
SOURCE: dict[str, Any] = {"name": "shop", "provider": "tilda"}
PLAN: dict[str, Any] = {
    "plan_id": "monthly",
    "price_minor": 1,
    "currency": "RUB",
    "product": "default",
    "days": 30,
    "months": 0,
    "is_default": True,
}
BAN = {
    "address": "192.0.2.1",
    "reason": "bad_signature",
    "score": 200.0,
    "times": 1,
    "banned_at": NOW,
    "until": NOW + timedelta(minutes=10),
}
API_KEY: dict[str, Any] = {
    "id": UUID(int=6),
    "name": "n",
    "hint": "po_",
    "hash": b"h" * 32,
    "scope": "read",
}
REFUND: dict[str, Any] = {
    "source_id": 1,
    "refund_id": "r-1",
    "payment_id": UUID(int=1),
    "amount_minor": 1,
}
WALLET: dict[str, Any] = {"id": UUID(int=7), "owner": "u-1", "currency": "RUB"}
ENTRY: dict[str, Any] = {
    "movement_id": UUID(int=8),
    "account": "wallet:1",
    "currency": "RUB",
    "amount_minor": 1,
    "at": NOW,
}
RESERVATION: dict[str, Any] = {
    "payment_id": "p-1",
    "wallet_id": UUID(int=7),
    "request_hash": b"",
    "amount_minor": 5,
    "status": "RESERVED",
    "created_at": NOW,
}
DUE: dict[str, Any] = {"run_at": NOW, "event_id": UUID(int=7), "queue_name": 1, "source_id": 1}
NONCE: dict[str, Any] = {
    "source_id": 1,
    "digest": DIGEST,
    "fingerprint": DIGEST,
    "fingerprint_version": 1,
}
REPLAY: dict[str, Any] = {
    "id": UUID(int=7),
    "status": "RUNNING",
    "filter": "{}",
    "is_dry_run": False,
    "rate": 100,
    "actor": "somebody",
    "started_at": NOW,
}
NOTICE: dict[str, Any] = {"channel": "ops", "at": NOW, "kind": "conflict"}
MESSAGE: dict[str, Any] = {
    "id": UUID(int=10),
    "channel": "ops",
    "at": NOW,
    "content": "{}",
    "next_attempt_at": NOW,
}
RECONCILIATION: dict[str, Any] = {
    "id": UUID(int=10),
    "source_id": 1,
    "status": "PENDING",
    "since": NOW,
    "until": datetime(2026, 11, 16, tzinfo=UTC),
    "repairs": True,
    "is_scheduled": False,
    "actor": "somebody",
}
FINDING: dict[str, Any] = {
    "source_id": 1,
    "id_kind": "payment",
    "external_id": "p",
    "kind": "behind",
    "reason": "why",
    "opened_by": UUID(int=10),
    "seen_by": UUID(int=10),
    "first_seen_at": NOW,
    "last_seen_at": NOW,
}
DEAD_MESSAGE: dict[str, Any] = {
    "consumer": "c",
    "event_id": UUID(int=1),
    "topic": "t",
    "key": "k",
    "type": "t",
    "version": 1,
    "time": NOW,
    "body": b"{}",
    "error": "e",
    "attempts": 1,
}
WALLET_PAYMENT: dict[str, Any] = {
    "payment_id": "p-1",
    "wallet_id": UUID(int=7),
    "source_id": 1,
    "amount_minor": 1,
    "currency": "RUB",
    "request_hash": b"",
    "status": "PROCESSING",
    "next_attempt_at": NOW,
    "created_at": NOW,
    "updated_at": NOW,
}
CALLBACK: dict[str, Any] = {
    "id": UUID(int=11),
    "source_id": 1,
    "transaction_id": "tx-1",
    "gateway_status": "pending",
    "event_id": UUID(int=12),
    "next_attempt_at": NOW,
    "received_at": NOW,
}
PAYMENT_VIEW: dict[str, Any] = {
    "payment_id": "p-1",
    "status": "PROCESSING",
    "amount_minor": 1,
    "currency": "RUB",
    "version": 2,
    "updated_at": NOW,
}
RIGHT = {
    "users": USER | {"id": UUID(int=77)},
    "wallet_payments": WALLET_PAYMENT,
    "gateway_callbacks": CALLBACK,
    "payment_views": PAYMENT_VIEW,
    "webhook_events": EVENT,
    "payments": PAYMENT,
    "subscriptions": SUBSCRIPTION,
    "orders": ORDER,
    "event_keys": KEY,
    "sources": SOURCE,
    "plan_versions": PLAN,
    "api_keys": API_KEY,
    "bans": BAN,
    "verified_senders": {"address": "192.0.2.1", "source_id": 1},
    "evidence_rooms": {"room": "strangers", "day": NOW, "taken": 1},
    "failing_sources": {"source_id": 1, "failures": 1, "address": "192.0.2.1"},
    "lookup_senders": {"source_id": 1, "sender": "192.0.2.1"},
    "failing_handlers": {"handler": "shop.fulfill"},
    "reloads": {"id": UUID(int=5), "actor": "somebody"},
    "reload_answers": {
        "reload_id": UUID(int=5),
        "backend": 1,
        "process": "here:1",
        "process_group": 1,
        "is_accepted": True,
        "changed": [],
        "needs_restart": [],
        "digest": b"d",
    },
    "refunds": REFUND,
    "wallets": WALLET,
    "ledger_entries": ENTRY,
    "reservations": RESERVATION,
    "event_queue": DUE,
    "nonces": NONCE,
    "replays": REPLAY,
    "notifications": NOTICE,
    "notification_messages": MESSAGE,
    "reconciliations": RECONCILIATION,
    "reconciliation_findings": FINDING,
    "outbox": {
        "aggregate_type": "payment",
        "aggregate_id": UUID(int=1),
        "type": "payment.applied",
        "version": 1,
        "payload": "{}",
        "occurred_at": NOW,
    },
    "bus_cursors": {"consumer": "c", "aggregate_type": "a"},
    "bus_dead_letters": DEAD_MESSAGE,
}
OTHER_ID = UUID(int=9)
FAILED = {"status": "FAILED_FINAL", "error_code": "MALFORMED"}
DISCARDED = {"discarded_at": NOW, "discarded_by": "somebody", "discard_reason": "why"}

WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("wallet_payments", "wallet_payments_amount_minor_check", {"amount_minor": 0}),
    ("wallet_payments", "wallet_payments_status", {"status": "PAID", "next_attempt_at": None}),
    ("wallet_payments", "wallet_payments_failure", {"status": "FAILED", "next_attempt_at": None}),
    ("wallet_payments", "wallet_payments_failure", {"failure": "DECLINED"}),
    ("wallet_payments", "wallet_payments_next_attempt", {"status": "COMPLETED"}),
    ("gateway_callbacks", "gateway_callbacks_gateway_status", {"gateway_status": "perhaps"}),
    ("gateway_callbacks", "gateway_callbacks_amount_has_currency", {"amount_minor": 5}),
    (
        "gateway_callbacks",
        "gateway_callbacks_status",
        {"status": "LOST", "next_attempt_at": None, "ended_at": NOW},
    ),
    ("gateway_callbacks", "gateway_callbacks_ended", {"status": "DONE", "next_attempt_at": None}),
    ("gateway_callbacks", "gateway_callbacks_next_attempt", {"next_attempt_at": None}),
    ("payment_views", "payment_views_status", {"status": "PAID"}),
    ("outbox", "outbox_key", {"aggregate_name": "ours and theirs"}),
    ("outbox", "outbox_key", {"aggregate_id": None}),
    ("bus_cursors", "bus_cursors_pos_check", {"pos": -1}),
    ("bus_cursors", "bus_cursors_lag_check", {"lag": -1}),
    ("bus_dead_letters", "bus_dead_letters_attempts_check", {"attempts": 0}),
    ("bus_dead_letters", "bus_dead_letters_consumed", {"consumed_at": NOW}),
    ("bus_dead_letters", "bus_dead_letters_discarded", {"discarded_at": NOW}),
    ("bus_dead_letters", "bus_dead_letters_discarded", {"discard_reason": "why"}),
    (
        "bus_dead_letters",
        "bus_dead_letters_one_end",
        {"consumed_at": NOW, "retried_at": NOW, **DISCARDED},
    ),
    ("bus_dead_letters", "bus_dead_letters_one_end", {"retried_at": NOW, **DISCARDED}),
    ("reconciliations", "reconciliations_status", {"status": "BEGUN"}),
    ("reconciliations", "reconciliations_times", {"status": "RUNNING"}),
    ("reconciliations", "reconciliations_times", {"status": "DONE"}),
    ("reconciliations", "reconciliations_times", {"finished_at": NOW}),
    (
        "reconciliations",
        "reconciliations_failure_has_message",
        {"status": "FAILED", "finished_at": NOW},
    ),
    ("reconciliations", "reconciliations_failure_has_message", {"error_message": "why"}),
    ("reconciliations", "reconciliations_window", {"until": NOW}),
    ("reconciliation_findings", "reconciliation_findings_kind", {"kind": "odd"}),
    ("reconciliation_findings", "reconciliation_findings_resolution", {"resolved_at": NOW}),
    (
        "reconciliation_findings",
        "reconciliation_findings_resolution",
        {"resolved_at": NOW, "resolution": "forgotten"},
    ),
    ("webhook_events", "webhook_events_status", {"status": "DONE", "processed_at": None}),
    ("webhook_events", "webhook_events_final_is_processed", {"processed_at": None}),
    ("webhook_events", "webhook_events_final_is_processed", {"status": "VALIDATED"}),
    ("webhook_events", "webhook_events_failure_has_code", {"status": "FAILED_FINAL"}),
    ("webhook_events", "webhook_events_failure_has_code", {"status": "DEAD_LETTER"}),
    (
        "webhook_events",
        "webhook_events_failure_has_code",
        {"status": "FAILED_RETRYABLE", "processed_at": None},
    ),
    ("webhook_events", "webhook_events_failure_has_code", {"error_code": "INTERNAL"}),
    ("webhook_events", "webhook_events_forged_is_final", {"signature_valid": False}),
    ("webhook_events", "webhook_events_conflict", {**FAILED, "conflicts_with": OTHER_ID}),
    ("webhook_events", "webhook_events_conflict", {**FAILED, "error_code": "PAYLOAD_CONFLICT"}),
    ("webhook_events", "webhook_events_erased_is_final", {"erased_at": NOW, "raw_body": b"x"}),
    ("webhook_events", "webhook_events_attempts_check", {"attempts": -1}),
    ("payments", "payments_amounts", {"captured_minor": -1}),
    ("payments", "payments_amounts", {"refund_total_minor": -1}),
    ("payments", "payments_amounts", {"refund_total_minor": 2, "refunded_minor": 1}),
    ("payments", "payments_amounts", {"reversed_minor": -1}),
    ("payments", "payments_money_has_currency", {"currency": None}),
    ("payments", "payments_applied_was_captured", {"captured_minor": 0, "applied_at": NOW}),
    ("payments", "payments_period", {"applied_at": NOW, "subscription_id": OTHER_ID}),
    ("payments", "payments_period", {"applied_at": NOW, "period_start": NOW}),
    ("payments", "payments_period", {"applied_at": NOW, "period_end": NOW}),
    (
        "payments",
        "payments_period",
        {"subscription_id": OTHER_ID, "period_start": NOW, "period_end": NOW},
    ),
    ("payments", "payments_expired_is_not_applied", {"is_expired": True, "applied_at": NOW}),
    ("payments", "payments_unreadable_has_no_money", {"unreadable_at": NOW}),
    ("payments", "payments_version_check", {"version": 0}),
    ("subscriptions", "subscriptions_status", {"status": "PAUSED"}),
    ("subscriptions", "subscriptions_canceled", {"status": "CANCELED"}),
    ("subscriptions", "subscriptions_canceled", {"ended_at": NOW}),
    ("subscriptions", "subscriptions_active_has_end", {"current_period_end": None}),
    ("subscriptions", "subscriptions_version_check", {"version": 0}),
    ("subscriptions", "subscriptions_anchor_day_check", {"anchor_day": 32}),
    ("orders", "orders_kind", {"kind": "gift"}),
    ("orders", "orders_status", {"status": "SHIPPED"}),
    ("orders", "orders_paid_has_time", {"status": "PAID", "applied_payment_id": OTHER_ID}),
    ("orders", "orders_paid_has_payment", {"status": "PAID", "paid_at": NOW}),
    ("orders", "orders_paid_has_payment", {"applied_payment_id": OTHER_ID}),
    ("orders", "orders_recipient", {"kind": "subscription"}),
    ("orders", "orders_recipient", {"kind": "wallet"}),
    (
        "orders",
        "orders_closed_is_not_paid",
        {"status": "PAID", "paid_at": NOW, "applied_payment_id": OTHER_ID, "closed_at": NOW},
    ),
    ("orders", "orders_reversed_was_fulfilled", {"reversed_at": NOW}),
    ("wallets", "wallets_never_negative", {"balance_minor": -1}),
    ("wallets", "wallets_never_negative", {"balance_minor": 1, "reserved_minor": 2}),
    ("wallets", "wallets_never_negative", {"receivable_minor": -1}),
    ("wallets", "wallets_merged_is_empty", {"balance_minor": 5, "merged_into": OTHER_ID}),
    ("users", "users_erased_has_no_email", {"id": OTHER_ID, "email": None}),
    ("users", "users_erased_has_no_email", {"id": OTHER_ID, "erased_at": NOW}),
    ("wallets", "wallets_version_check", {"version": 0}),
    ("ledger_entries", "ledger_entries_amount_minor_check", {"amount_minor": 0}),
    ("reservations", "reservations_amount_minor_check", {"amount_minor": 0}),
    ("reservations", "reservations_status", {"status": "TAKEN", "ended_at": NOW}),
    ("reservations", "reservations_committed", {"committed_minor": 1}),
    ("reservations", "reservations_committed", {"status": "COMMITTED", "ended_at": NOW}),
    (
        "reservations",
        "reservations_committed",
        {"status": "COMMITTED", "ended_at": NOW, "committed_minor": 6},
    ),
    ("reservations", "reservations_ended", {"ended_at": NOW}),
    ("reservations", "reservations_ended", {"status": "RELEASED"}),
    ("payments", "payments_reversed_was_applied", {"reversed_minor": 1}),
    (
        "payments",
        "payments_reversed_was_applied",
        {"applied_at": NOW, "applied_minor": 50, "reversed_minor": 51},
    ),
    ("orders", "orders_amount_minor_check", {"amount_minor": -1}),
    ("orders", "orders_version_check", {"version": 0}),
    ("event_keys", "event_keys_digest_check", {"digest": b"short"}),
    ("event_keys", "event_keys_purpose_check", {"purpose": b"p" * 11}),
    ("event_keys", "event_keys_fingerprint_check", {"fingerprint": b"f" * 17}),
    ("sources", "sources_name", {"name": "health"}),
    ("sources", "sources_name", {"name": "Shop"}),
    ("sources", "sources_name", {"name": "a-b"}),
    ("sources", "sources_name", {"name": "shop\n"}),
    ("plan_versions", "plan_versions_duration", {"days": 0}),
    ("plan_versions", "plan_versions_valid", {"valid_from": NOW, "valid_until": NOW}),
    ("plan_versions", "plan_versions_price_minor_check", {"price_minor": -1}),
    ("plan_versions", "plan_versions_days_check", {"days": -1, "months": 2}),
    ("plan_versions", "plan_versions_months_check", {"months": -1}),
    ("replays", "replays_status", {"status": "GONE"}),
    ("replays", "replays_final_is_finished", {"finished_at": NOW}),
    ("replays", "replays_final_is_finished", {"status": "DONE"}),
    ("replays", "replays_running_is_started", {"started_at": None}),
    ("replays", "replays_running_is_started", {"status": "PENDING"}),
    ("replays", "replays_paused_has_time", {"status": "PAUSED"}),
    ("replays", "replays_paused_has_time", {"paused_at": NOW}),
    ("replays", "replays_failed_has_error", {"error": "a fault"}),
    ("replays", "replays_failed_has_error", {"status": "FAILED", "finished_at": NOW}),
    ("replays", "replays_rate_check", {"rate": 0}),
    ("replays", "replays_numbers", {"done": -1}),
    ("replays", "replays_numbers", {"total": -1}),
    (
        "replays",
        "replays_done_has_no_skipped",
        {"status": "DONE", "finished_at": NOW, "skipped": [OTHER_ID]},
    ),
    ("api_keys", "api_keys_scope_check", {"scope": "root"}),
    ("api_keys", "api_keys_hash_check", {"hash": b"plain"}),
    ("api_keys", "api_keys_hash_method", {"hash_method": "md5"}),
    ("bans", "bans_address_check", {"address": ""}),
    ("bans", "bans_times_check", {"times": -1}),
    ("bans", "bans_until", {"until": NOW}),
    ("bans", "bans_lifted", {"lifted_at": NOW - timedelta(seconds=1)}),
    ("verified_senders", "verified_senders_address_check", {"address": "a" * 101}),
    ("evidence_rooms", "evidence_rooms_room_check", {"room": "attic"}),
    ("evidence_rooms", "evidence_rooms_taken_check", {"taken": -1}),
    ("failing_sources", "failing_sources_address_check", {"address": ""}),
    ("failing_sources", "failing_sources_failures_check", {"failures": -1}),
    ("reloads", "reloads_status", {"status": "LOST", "decided_at": NOW}),
    ("reloads", "reloads_decided", {"status": "TAKEN"}),
    ("reloads", "reloads_reason", {"status": "REFUSED", "decided_at": NOW}),
    ("reload_answers", "reload_answers_reason", {"reason": "none"}),
    ("reload_answers", "reload_answers_digest", {"digest": None}),
    ("refunds", "refunds_amount_minor_check", {"amount_minor": -1}),
    ("event_queue", "event_queue_queue_name", {"queue_name": 3}),
    ("event_queue", "event_queue_lookup_has_source", {"source_id": None}),
    ("event_queue", "event_queue_lane", {"lane": 4}),
    ("lookup_senders", "lookup_senders_sender_check", {"sender": ""}),
    ("lookup_senders", "lookup_senders_wrong_check", {"wrong": -1}),
    ("failing_handlers", "failing_handlers_handler_check", {"handler": ""}),
    ("nonces", "nonces_digest_check", {"digest": b"short"}),
    ("nonces", "nonces_fingerprint_check", {"fingerprint": b"short"}),
    ("notifications", "notifications_suppressed", {"suppressed": -1}),
    ("notification_messages", "notification_messages_status", {"status": "LOST", "ended_at": NOW}),
    ("notification_messages", "notification_messages_ended", {"status": "SENT"}),
    ("notification_messages", "notification_messages_ended", {"ended_at": NOW}),
    ("notification_messages", "notification_messages_attempts_check", {"attempts": -1}),
]


@pytest.mark.parametrize(
    ("table", "constraint", "wrong"), WRONG, ids=[f"{name}-{row}" for _, name, row in WRONG]
)
async def test_a_row_that_contradicts_itself_is_refused(
    connection: Connection, table: str, constraint: str, wrong: dict[str, Any]
) -> None:
    """INB-3 PAY-1 FUL-1: the same row is fine without what is wrong in it."""
    await insert(connection, "users", USER)
    if table == "reservations":
        await insert(connection, "wallets", WALLET)
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await insert(connection, table, RIGHT[table] | wrong)
    assert caught.value.constraint_name == constraint
    if table != "ledger_entries":  # one of these is never right alone: see below
        await insert(connection, table, RIGHT[table])


async def test_entries_that_do_not_sum_to_zero_are_refused(connection: Connection) -> None:
    """WAL-2 FUL-4: the entries of one movement, in one currency."""
    sql = (
        "INSERT INTO ledger_entries (movement_id, account, currency, amount_minor, at)"
        " SELECT $1, 'a', * , now() FROM unnest($2::text[], $3::bigint[])"
    )
    for currencies, amounts in ((["RUB"], [5]), (["RUB", "USD"], [5, -5]), (["RUB"] * 2, [5, -4])):
        with pytest.raises(asyncpg.CheckViolationError, match="sum to zero"):
            async with connection.transaction():
                await connection.execute(sql, UUID(int=8), currencies, amounts)
    await connection.execute(sql, UUID(int=8), ["RUB"] * 3, [5, -4, -1])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger_entries SET amount_minor = 1",
        "UPDATE ledger_entries SET account = 'b'",
        "DELETE FROM ledger_entries",
        "TRUNCATE ledger_entries",
    ],
)
async def test_entries_of_the_ledger_are_never_changed(connection: Connection, change: str) -> None:
    """WAL-2: only of which payment they are may be mended, when two turn out to be one."""
    await connection.execute("UPDATE ledger_entries SET payment_id = NULL")
    with pytest.raises(asyncpg.CheckViolationError, match="never changed"):
        await connection.execute(change)


async def test_every_check_of_the_schema_has_a_row_that_it_refuses(connection: Connection) -> None:
    """INB-3: a constraint that nobody tries is a constraint that nobody knows to work."""
    rows = await connection.fetch(
        "SELECT DISTINCT conname FROM pg_constraint AS c JOIN pg_class AS t ON t.oid = conrelid"
        " WHERE contype = 'c' AND t.relnamespace = current_schema()::regnamespace"
        " AND NOT relispartition"
    )
    assert {row["conname"] for row in rows} == {name for _, name, _ in WRONG}


async def test_every_constraint_is_validated(connection: Connection) -> None:
    """DAT-1: none is NOT VALID, and no index is left unfinished."""
    names = await connection.fetch(
        "SELECT conname AS name FROM pg_constraint WHERE NOT convalidated"
        " UNION ALL SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
    )
    assert names == []


@pytest.mark.parametrize(
    ("table", "other"),
    [
        ("event_keys", {"event_id": OTHER_ID, "fingerprint": b"f" * 16}),
        ("nonces", {"fingerprint": b"f" * 16}),
        ("payment_ids", {"payment_id": OTHER_ID}),
        ("refunds", {"payment_id": OTHER_ID, "amount_minor": 7}),
        ("user_emails", {"email": "a@B", "is_current": False}),
        ("user_emails", {"email_key": "c@d"}),
        ("subscriptions", {"id": OTHER_ID, "status": "INACTIVE"}),
        ("orders", {"id": OTHER_ID, "amount_minor": 5}),
        ("wallet_payments", {"amount_minor": 5}),
        ("gateway_callbacks", {"id": OTHER_ID, "event_id": OTHER_ID}),
        ("reservations", {"amount_minor": 6, "status": "RELEASED", "ended_at": NOW}),
        ("sources", {"provider": "stripe"}),
        ("api_keys", {"id": OTHER_ID, "name": "other"}),
        ("reconciliation_findings", {"reason": "another"}),
    ],
)
async def test_what_must_be_unique_is_unique_by_constraint(
    connection: Connection, table: str, other: dict[str, Any]
) -> None:
    """INB-1 PAY-1 PAY-6 FUL-1"""
    identity = {"source_id": 1, "kind": "payment", "external_id": "p", "payment_id": UUID(int=1)}
    right = {**RIGHT, "user_emails": EMAIL, "payment_ids": identity}[table]
    await insert(connection, "users", USER)
    if table == "reservations":
        await insert(connection, "wallets", WALLET)
    await insert(connection, table, right)
    with pytest.raises(asyncpg.UniqueViolationError):
        await insert(connection, table, right | other)


@pytest.mark.parametrize("source_id", [1, 2])
async def test_a_key_is_unique_for_its_source_only(connection: Connection, source_id: int) -> None:
    """INB-1: nothing of one source is mistaken for another's."""
    await insert(connection, "event_keys", KEY)
    if source_id == 2:
        await insert(connection, "event_keys", KEY | {"source_id": 2})
    with pytest.raises(asyncpg.UniqueViolationError):
        await insert(connection, "event_keys", KEY | {"source_id": source_id})


@pytest.mark.parametrize("status", EventStatus)
async def test_each_status_of_an_event_can_be_kept(
    connection: Connection, status: EventStatus
) -> None:
    """INB-3"""
    failed = status.startswith("FAILED") or status is EventStatus.DEAD_LETTER
    row = {
        "status": status,
        "processed_at": None if status in PENDING else NOW,
        "error_code": "INTERNAL" if failed else None,
    }
    await insert(connection, "webhook_events", EVENT | row)


async def test_text_keys_compare_byte_by_byte(connection: Connection) -> None:
    """DAT-1: no collation may take two ids of a gateway for one, or sort them anew."""
    rows = await connection.fetch(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND collation_name = 'C'"
    )
    found = {(row["table_name"], row["column_name"]) for row in rows}
    for wanted in [
        ("payment_ids", "external_id"),
        ("refunds", "refund_id"),
        ("user_emails", "email_key"),
        ("orders", "reference"),
        ("webhook_events", "external_payment_id"),
    ]:
        assert wanted in found
