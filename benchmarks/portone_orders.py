"""Orders paid through PortOne: their rows, a steady stream of webhooks, and their times."""

import asyncio
import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import perf_counter

import aiohttp
import orjson

from benchmarks.contender import BenchmarkError
from benchmarks.databases import connected
from benchmarks.load import HOST, OrdersPaid, percentile

ORDERS_PER_S = 20
SECRET_BYTES = b"benchmark-secret-0123456789abcdef"
SECRET = base64.b64encode(SECRET_BYTES).decode()
API_SECRET = "benchmark-api-secret"
PRICE_MINOR = 10_000
CURRENCY = "KRW"
ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.05
MAX_DRAIN_S = 180.0

_CREATE = """
    INSERT INTO paidonce.orders
           (id, reference, kind, status, amount_minor, currency, request_hash, version)
    SELECT gen_random_uuid(), reference, 'order', 'PENDING', $2, $3, '', 1
      FROM unnest($1::text[]) AS reference
"""
# The clock of the transaction that paid it, on the machine that also sent the webhook.
_PAID = """
    SELECT reference, fulfilled_at FROM paidonce.orders
     WHERE status = 'PAID' AND reference = ANY ($1)
"""


def transaction_of(payment_id: str) -> str:
    """PortOne's id of the only payment attempt."""
    return f"tx-{payment_id}"


async def create_orders(url: str, seconds: float) -> list[str]:
    """Create enough orders for a stream of this many seconds, and return their references."""
    references = [f"order-{number}" for number in range(int(ORDERS_PER_S * seconds))]
    async with connected(url) as connection:
        await connection.execute(_CREATE, references, PRICE_MINOR, CURRENCY)
    return references


class Stream:
    """Sends webhooks at a steady pace, without waiting for answers."""

    def __init__(self, *, port: int, path: str, references: Sequence[str]) -> None:
        self._address = f"http://{HOST}:{port}{path}"
        self._references = references
        self._stopped = False
        self.answers: Counter[str] = Counter()
        self.sent_at: dict[str, datetime] = {}

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Send until the block ends or the orders run out; then wait for the last answers."""
        task = asyncio.create_task(self._flow())
        try:
            yield
        finally:
            self._stopped = True
            await task

    async def _flow(self) -> None:
        begun_s = perf_counter()
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_TIMEOUT_S))
        async with session, asyncio.TaskGroup() as under_way:
            for number, reference in enumerate(self._references):
                await asyncio.sleep(begun_s + number / ORDERS_PER_S - perf_counter())
                if self._stopped:
                    return
                under_way.create_task(self._send(session, reference))

    async def _send(self, session: aiohttp.ClientSession, reference: str) -> None:
        self.sent_at[reference] = datetime.now(UTC)
        headers, body = _webhook(reference, self.sent_at[reference])
        try:
            async with session.post(self._address, headers=headers, data=body) as answer:
                self.answers[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError):
            self.answers["lost"] += 1


async def wait_until_paid(url: str, stream: Stream) -> dict[str, datetime]:
    """When each order of a stream was paid. Raises BenchmarkError if one is not paid in time."""
    sent, deadline_s = list(stream.sent_at), perf_counter() + MAX_DRAIN_S
    async with connected(url) as connection:
        while len(paid := await connection.fetch(_PAID, sent)) < len(sent):
            if perf_counter() > deadline_s:
                raise BenchmarkError(
                    f"{len(paid)} of {len(sent)} orders were paid {MAX_DRAIN_S:g} s after the "
                    f"last webhook; the webhooks were answered {dict(stream.answers)}"
                )
            await asyncio.sleep(POLL_S)
    return {row["reference"]: row["fulfilled_at"] for row in paid}


def orders_paid(
    sent_at: Mapping[str, datetime], paid_at: Mapping[str, datetime], measured: Sequence[str]
) -> OrdersPaid:
    """The counts of all orders, and the times of those sent in the measured time."""
    delays_s = [(paid_at[each] - sent_at[each]).total_seconds() for each in measured]
    ordered_s = sorted(delays_s) or [float("nan")]
    return OrdersPaid(
        sent=len(sent_at),
        paid=len(paid_at),
        p50_ms=percentile(ordered_s, 0.50) * 1000,
        p99_ms=percentile(ordered_s, 0.99) * 1000,
    )


def _webhook(reference: str, sent_at: datetime) -> tuple[dict[str, str], bytes]:
    """A webhook of PortOne's V2, signed by Standard Webhooks."""
    data = {"paymentId": reference, "transactionId": transaction_of(reference)}
    said = {"type": "Transaction.Paid", "timestamp": sent_at.isoformat(), "data": data}
    body = orjson.dumps(said)
    event_id, timestamp = f"evt-{reference}", str(int(sent_at.timestamp()))
    signed = f"{event_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(SECRET_BYTES, signed, hashlib.sha256)).decode()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }
    return headers, body
