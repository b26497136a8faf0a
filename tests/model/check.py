"""Compares what the API and the database show with the model."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.model.cluster import Cluster
from tests.model.model import WAITING, Order, Payment, minor
from tests.model.runner import Run
from tests.support.tools import Row

_OUTBOX: Final = """
SELECT aggregate_id::text AS payment_id, type, payload->>'amount' AS amount
  FROM outbox
 WHERE type IN ('payment.applied', 'payment.reversed', 'payment.reinstated')
"""
UNBALANCED: Final = """
SELECT movement_id FROM ledger_entries GROUP BY movement_id, currency HAVING sum(amount_minor) <> 0
"""
UNEXPLAINED: Final = """
SELECT w.id, w.balance_minor, coalesce(sum(e.amount_minor), 0) AS explained
  FROM wallets AS w LEFT JOIN ledger_entries AS e ON e.account = 'wallet:' || w.id
 GROUP BY w.id HAVING w.balance_minor <> coalesce(sum(e.amount_minor), 0)
"""
EVIDENCE: Final = ("PAYLOAD_CONFLICT", "INVALID_SIGNATURE", "MALFORMED")
SUMS: Final = ("captured", "refunded")
BOOKINGS: Final = {
    "PENDING": "PENDING",
    "PAID": "CONFIRMED",
    "REFUNDED": "CANCELED",
    "CANCELED": "CANCELED",
}


@dataclass(frozen=True)
class Seen:
    """All that a cluster shows at the end."""

    payments: Mapping[str, Any]
    """By each of the gateways' ids."""
    events: list[Any]
    outbox: list[Row]
    at: datetime


def seen(cluster: Cluster) -> Seen:
    payments = {each["id"]: one for one in cluster.items("/payments") for each in one["ids"]}
    events = list(cluster.items("/events"))
    return Seen(payments, events, cluster.rows(_OUTBOX), datetime.now(UTC))


def check_ledger(cluster: Cluster) -> None:
    """WAL-2: of all histories together."""
    assert cluster.rows(UNBALANCED) == []
    assert cluster.rows(UNEXPLAINED) == []


def differences(run: Run, found: Seen) -> list[str]:
    """What of a history is not as the model says."""
    return [*run.wrong, *_Check(run, found).all()]


class _Check:
    def __init__(self, run: Run, found: Seen) -> None:
        self._run = run
        self._model = run.model
        self._found = found
        self._orders = {
            one: run.cluster.api("GET", f"/orders/{one}").json for one in run.model.orders
        }
        for payment in self._model.payments.values():
            row = self._row(payment)
            payment.user = row and self._run.cluster.user_of(row)
        self._standing = {
            one.name for one in self._model.payments.values() if self._is_standing(one)
        }

    def all(self) -> Iterator[str]:
        for payment in self._model.payments.values():
            yield from self._payment(payment)
            yield from self._events(payment)
        for order in self._model.orders.values():
            yield from self._order(order)
        for wallet in self._run.wallets:
            yield from self._wallet(wallet)
        for user_id in self._model.people.all():
            yield from self._subscription(user_id)
        conflicts = sum(
            one["error_code"] == "PAYLOAD_CONFLICT" and self._is_ours(one["payment"])
            for one in self._found.events
        )
        if conflicts < self._run.conflicts or (conflicts and not self._run.conflicts):
            yield f"{conflicts} conflicts were kept of {self._run.conflicts}"

    def _is_ours(self, payment: str | None) -> bool:
        return any(payment in _names(one) for one in self._model.payments.values())

    def _row(self, payment: Payment) -> Any:
        found = (self._found.payments.get(one) for one in _names(payment))
        return next((one for one in found if one is not None), None)

    def _is_standing(self, payment: Payment) -> bool:
        row = self._row(payment)
        is_applied = row is not None and row["applied_at"] is not None
        return is_applied and payment.held > 0 and row["review"] in (None, "EXCESS")

    def _applied(self, payment: Payment) -> set[int]:
        """What may be applied of it, one of which the API shows."""
        return self._model.applicable(payment) - {0}

    def _payment(self, payment: Payment) -> Iterator[str]:
        row = self._row(payment)
        if not payment.exists or row is None:
            if payment.exists or row is not None:
                yield f"{payment.name} exists: {row is not None}, expected {payment.exists}"
            return
        shown = (row["status"], *(minor(row[one], payment.currency) for one in SUMS))
        expected = (payment.status, payment.captured, payment.refunded)
        if payment.is_of_nothing and shown[1:] == expected[1:]:
            expected = shown
        if shown != expected:
            yield f"{payment.name} is {shown}, expected {expected}"
        if (row["disputed_at"] is not None) != payment.is_disputed:
            yield f"{payment.name} is disputed: {row['disputed_at']}"
        email = self._email(payment)
        if payment.user and email and payment.user not in self._model.people.owners(email):
            yield f"{payment.name} belongs to {payment.user}, who never had {email}"
        if row["review"] not in (reviews := self._reviews(payment)):
            yield f"{payment.name} has review {row['review']}, expected one of {reviews}"
        yield from self._applications(payment, row)

    def _reviews(self, payment: Payment) -> set[str | None]:
        if payment.is_of_nothing:
            price, obstacles = self._model.price(payment), self._model.obstacles(payment)
            if price is None or price[0] or obstacles - {"AMOUNT_MISMATCH", "DUPLICATE_PAYMENT"}:
                return {None, "AMOUNT_MISMATCH", *obstacles}
            return {None}
        if not payment.held:
            return {"REFUND_EXCESS" if payment.refunded > payment.captured > 0 else None}
        model = self._model
        if payment.name in self._standing:
            return {"EXCESS" if one < payment.held else None for one in self._applied(payment)}
        found: set[str | None] = {*model.obstacles(payment)}
        others = {one.name for one in model.rivals(payment.order or "")} - {payment.name}
        if others & self._standing:
            found.add("DUPLICATE_PAYMENT")
        if 0 in model.applicable(payment):
            found.add("AMOUNT_MISMATCH")
        return found

    def _applications(self, payment: Payment, row: Any) -> Iterator[str]:
        """FUL-6 PAY-10: applied once, and what was reversed and reinstated explains what stands."""
        stands = payment.name in self._standing
        allowed = (
            {payment.held - min(one, payment.held) for one in self._applied(payment)}
            if stands
            else {0}
        )
        excess = minor(row["excess"], payment.currency)
        if (stands or not payment.held) and excess not in allowed:
            yield f"{payment.name} has an excess of {excess}, expected one of {allowed}"
        if self._model.applicable(payment) == {0} and row["applied_at"] is not None:
            yield f"{payment.name} was applied, although no sum of it fits"
        told = [one for one in self._found.outbox if one["payment_id"] == row["id"]]
        kinds = Counter(one["type"] for one in told)
        if kinds["payment.applied"] != (row["applied_at"] is not None):
            yield f"{payment.name} was told as applied {kinds['payment.applied']} times"
        sums = dict.fromkeys(("payment.applied", "payment.reversed", "payment.reinstated"), 0)
        for one in told:
            sums[one["type"]] += minor(one["amount"], payment.currency)
        left = sums["payment.applied"] - sums["payment.reversed"] + sums["payment.reinstated"]
        if left not in (expected := self._stands(payment)):
            yield f"messages leave {left} of {payment.name}, expected one of {expected}: {sums}"

    def _stands(self, payment: Payment) -> set[int]:
        """FUL-4: of a wallet what remains; of everything else all, while anything remains."""
        if payment.name not in self._standing:
            return {0}
        order = self._model.orders.get(payment.order or "")
        if order is None or order.kind != "wallet":
            return self._applied(payment)
        return {min(one, payment.held) for one in self._applied(payment)}

    def _events(self, payment: Payment) -> Iterator[str]:
        found = [one for one in self._found.events if one["payment"] in _names(payment)]
        number = sum(_is_own(one) for one in found)
        if number != (sent := self._run.sent(payment)):
            told = [(one["key"], one["type"], one["status"], one["error_code"]) for one in found]
            yield f"{number} events of {payment.name} are stored, expected {sent}: {told}"
        for one in found:
            code, status = one["error_code"], one["status"]
            is_waiting = status == "FAILED_RETRYABLE" and code in WAITING
            is_done = status in ("PROCESSED", "IGNORED", "FAILED_FINAL")
            if not is_done and not is_waiting:
                yield f"an event of {payment.name} is {status} {code}: {one}"
            if is_waiting and payment.name in self._standing:
                yield f"an event of {payment.name} waits for {code}, which is there"
            is_of_tilda = payment.source == "payments" and one["type"] == "ignored"
            if is_of_tilda and (status, code) != ("IGNORED", "NON_SUCCESS_STATUS"):
                yield f"an event without effect is {status} {code}"

    def _order(self, order: Order) -> Iterator[str]:
        rivals = self._model.rivals(order.reference)
        paying = [one for one in rivals if one.name in self._standing]
        if any(not self._model.is_candidate(one) for one in paying):
            yield f"{order.reference} is paid by what cannot pay it: {paying}"
        if len(paying) > 1:
            yield f"{order.reference} is paid twice: {paying}"
        if not paying and any(self._model.is_sure(one) for one in rivals):
            yield f"{order.reference} is not paid, although there is money for it"
        status = self._orders[order.reference]["status"]
        expected = self._model.order_statuses(order, bool(paying))
        if status not in expected:
            yield f"{order.reference} is {status}, expected one of {expected}"
        if order.kind == "booking":
            booking = self._run.cluster.api("GET", f"/bookings/{order.reference}").json["status"]
            if booking != BOOKINGS[status]:
                yield f"booking {order.reference} is {booking}, and its order {status}"

    def _wallet(self, name: str) -> Iterator[str]:
        """FUL-4: it holds what remains of its payments, less what was spent."""
        shown = self._run.cluster.api("GET", f"/wallets/{self._run.wallets[name]}").json
        balance, owed = (minor(shown[one], shown["currency"]) for one in ("balance", "receivable"))
        least = most = -self._model.spent.get(name, 0)
        for payment in self._model.payments.values():
            order = self._model.orders.get(payment.order or "")
            if payment.name in self._standing and order and order.wallet == name:
                remaining = self._stands(payment) or {0}
                least, most = least + min(remaining), most + max(remaining)
        if not least <= balance - owed <= most or balance < 0 or owed < 0:
            yield f"{name} holds {balance} and owes {owed}, expected {least} to {most}"
        if not self._model.spent.get(name) and owed:
            yield f"{name} owes {owed}, and nothing was spent"

    def _subscription(self, user_id: str) -> Iterator[str]:
        """FUL-1 FUL-7: it ends after all periods that stand, from when they were granted."""
        model = self._model
        granted = [self._granted(one, user_id) for one in model.payments.values()]
        granted += [self._given(one, user_id) for one in model.orders.values()]
        length = sum(granted, timedelta(0))
        found = self._run.cluster.api("GET", "/subscriptions", user_id=user_id).json["items"]
        ends = [one["current_period_end"] for one in found if one["current_period_end"]]
        end = max(map(datetime.fromisoformat, ends), default=self._run.began_at)
        how = model.people.canceled.get(user_id)
        if any((one["canceled_at"] is not None) != (how is not None) for one in found):
            yield f"the subscription of {user_id} is {found}, expected canceled: {how}"
        first, last = self._run.began_at + length, self._found.at + length
        if how == "now":
            last = self._found.at
        if how in ("now", "either"):
            first = self._run.began_at
        if (length and not first <= end <= last) or (not length and end > last):
            yield f"the subscription of {user_id} ends {end}, expected {first} to {last}"

    def _email(self, payment: Payment) -> str | None:
        """Under which address it found its user."""
        order = self._model.orders.get(payment.order or "")
        return order.email if order is not None else payment.email

    def _granted(self, payment: Payment, user_id: str) -> timedelta:
        if payment.name not in self._standing:
            return timedelta(0)
        order = self._model.orders.get(payment.order or "")
        if payment.user != user_id or (order is not None and order.kind != "subscription"):
            return timedelta(0)
        plan = payment.plan if order is None else order.plan
        return self._model.plans[plan or self._model.default_plan].length

    def _given(self, order: Order, user_id: str) -> timedelta:
        """FUL-11: by an order that is free."""
        is_theirs = self._orders[order.reference]["user_id"] == user_id
        if not order.is_free or order.kind != "subscription" or not is_theirs:
            return timedelta(0)
        return self._model.plans[order.plan or self._model.default_plan].length


def _is_own(event: Any) -> bool:
    """Neither evidence, nor the fresh look that a repeat at PortOne asks for (INB-2)."""
    is_look = (event["key"] or "").startswith("look:")
    return event["error_code"] not in EVIDENCE and not is_look


def _names(payment: Payment) -> tuple[str, ...]:
    """How the gateway may call it."""
    return (payment.name, f"pi_{payment.name}", f"ch_{payment.name}")
