"""The payment service on a real database; the test supplies messages and answers."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from uuid_utils.compat import uuid7

from paidonce.bootstrap.registration import register_source
from paidonce.bus.model import Message, topic_of
from paidonce.core.events import SourceId, WalletId
from paidonce.core.money import Money
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.payouts.callbacks import CallbackRetries
from paidonce.payouts.caller import GatewayCaller
from paidonce.payouts.gateway import Gateway
from paidonce.payouts.processor import PayoutOptions, PayoutProcessor
from paidonce.processing.store import write_callbacks
from paidonce.runtime.wakeup import Wakeup
from paidonce.settings.sections import PayoutSettings

NO_GATEWAY = "http://127.0.0.1:9"
ROUTES = {NotificationKind.WALLET_PAYMENT: ("people",), NotificationKind.CALLBACK: ("people",)}


@dataclass
class PayoutHarness:
    """A payment service, its gateway caller, and its callback retries."""

    database: Database
    options: PayoutOptions
    processor: PayoutProcessor
    caller: GatewayCaller
    retries: CallbackRetries

    async def consume(self, *messages: Message) -> None:
        async with self.database.transaction() as connection:
            await self.processor.consume(connection, messages)

    async def wallet(self, amount_minor: int = 10_000, currency: str = "RUB") -> WalletId:
        """A wallet with this balance, and its ledger entries."""
        wallet_id = WalletId(uuid7())
        async with self.database.transaction() as connection:
            await connection.execute(
                "INSERT INTO wallets (id, owner, currency, balance_minor) VALUES ($1, $2, $3, $4)",
                wallet_id,
                str(uuid4()),
                currency,
                amount_minor,
            )
            await connection.execute(
                "INSERT INTO ledger_entries (movement_id, account, currency, amount_minor, at)"
                " SELECT $1, account, $2, amount, now() FROM unnest($3::text[], $4::bigint[])"
                " AS e (account, amount)",
                uuid7(),
                currency,
                [f"wallet:{wallet_id}", "gateway:1"],
                [amount_minor, -amount_minor],
            )
        return wallet_id

    async def told(
        self, transaction_id: str, *words: str, paid: Money | None = None
    ) -> list[Message]:
        """Store callbacks with these statuses; returns their messages."""
        now = datetime.now(UTC)
        sum_paid = (paid.amount_minor, paid.currency) if paid else (None, None)
        rows = [
            (uuid7(), self.options.source_id, transaction_id, word, uuid7(), now, *sum_paid)
            for word in words
        ]
        async with self.database.transaction() as connection:
            await write_callbacks(connection, rows)
        return [
            message("ProviderCallbackReceived", transaction_id, {"callback_id": str(row[0])})
            for row in rows
        ]

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        async with self.database.connection() as connection:
            return [dict(row) for row in await connection.fetch(sql, *values)]

    async def payment(self, payment_id: str) -> dict[str, Any]:
        (found,) = await self.rows(
            "SELECT * FROM wallet_payments WHERE payment_id = $1", payment_id
        )
        return found

    async def balance(self, wallet_id: WalletId) -> tuple[int, int]:
        (found,) = await self.rows("SELECT * FROM wallets WHERE id = $1", wallet_id)
        return found["balance_minor"], found["reserved_minor"]

    async def types_of(self, payment_id: str) -> list[str]:
        log = await self.rows(
            "SELECT type, version FROM outbox WHERE aggregate_type = 'wallet-payment'"
            " AND aggregate_name = $1 ORDER BY seq",
            payment_id,
        )
        first = log[0]["version"] if log else 1
        assert [one["version"] for one in log] == list(range(first, first + len(log)))
        return [one["type"] for one in log]

    async def make_due(self) -> None:
        """Make all callbacks and payments due now."""
        async with self.database.connection() as connection:
            await connection.execute(
                "UPDATE gateway_callbacks SET next_attempt_at = now()"
                " WHERE next_attempt_at IS NOT NULL;"
                "UPDATE wallet_payments SET next_attempt_at = now()"
                " WHERE next_attempt_at IS NOT NULL"
            )


async def open_harness(
    database: Database, gateway_url: str = NO_GATEWAY, key: str | None = None, **changes: Any
) -> PayoutHarness:
    async with database.transaction() as connection:
        source_id: SourceId = await register_source(connection, "bank", "standard")
    limits: dict[str, Any] = {"timeout_s": 0.1, "rate": 100.0, "max_calls": 4}
    settings = PayoutSettings(gateway_url=gateway_url, source="bank", **limits | changes)
    options = PayoutOptions(source_id, "bank", ROUTES, settings)
    return PayoutHarness(
        database,
        options,
        PayoutProcessor(options),
        GatewayCaller(database, Gateway(settings, key), options, Wakeup()),
        CallbackRetries(database, options),
    )


def message(
    kind: str,
    key: str,
    said: dict[str, Any] | bytes,
    *,
    version: int = 1,
    time: datetime | None = None,
) -> Message:
    """A message as a consumer gets it."""
    about = "gateway-callback" if kind == "ProviderCallbackReceived" else "wallet-payment"
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    at = time or datetime.now(UTC)
    return Message(uuid7(), topic_of(about), key, kind, version, at, body)


def initiated(payment_id: str, wallet_id: object, amount: str = "10.00", **said: Any) -> Message:
    """A PaymentInitiated."""
    usual = {
        "payment_id": payment_id,
        "wallet_id": str(wallet_id),
        "amount": amount,
        "currency": "RUB",
    }
    return message("PaymentInitiated", payment_id, usual | said)


async def at_once(*work: Any) -> Sequence[Any]:
    """Run concurrently; errors are among the results."""
    return await asyncio.gather(*work, return_exceptions=True)
