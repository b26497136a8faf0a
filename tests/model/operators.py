"""What operators do, what they must be answered, and what the model learns from the answer.

An action is a function in `ACTIONS`. It gets whether everything told so far has been processed and
nothing else is going on (`is_quiet`): only then the state, and so the answer, is known.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from tests.model.cluster import Cluster
from tests.model.histories import Act
from tests.model.model import Acceptance, Model, Order, Payment, major, minor
from tests.model.senders import EPOCH
from tests.support.service import Reply


class Operators:
    """Somebody with an API key."""

    def __init__(self, cluster: Cluster, model: Model, wallets: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._model = model
        self._wallets = wallets

    def act(self, act: Act, is_quiet: bool) -> list[str]:
        """Do it; returns what was answered wrongly."""
        return ACTIONS[act.verb](self, act, is_quiet)

    def _asked(self, act: Act, verb: str, said: Any) -> tuple[Payment, Reply] | None:
        """The answer to what is asked of a payment that exists."""
        payment, shown = self._shown(act)
        if shown is None:
            return None
        payment_id = shown["id"]
        return payment, self._cluster.api("POST", f"/payments/{payment_id}/{verb}", said)

    def _shown(self, act: Act) -> tuple[Payment, Any]:
        """What the API says of it; whose it is depends on when its events arrived."""
        payment = self._model.payments[act.payment]
        shown = self._cluster.shown(payment)
        payment.user = shown and self._cluster.user_of(shown)
        return payment, shown

    def link(self, act: Act, is_quiet: bool) -> list[str]:
        """PAY-5 PAY-8: to an order or a user; what was applied stays where it is."""
        before, to = self._model.payments[act.payment], act.to or ""
        if before.is_marked or not before.is_named:
            return []
        is_user, stands = "@" in to, self._stands(before)
        target = (before.order, before.email)
        asked = self._asked(act, "link", {"email": to} if is_user else {"order": to})
        if asked is None:
            return []
        payment, reply = asked
        exists = to in self._model.people if is_user else to in self._model.orders
        if reply.http == 200:
            self._relink(payment, to, is_user)
        if not is_quiet or to in target:
            return _unless(reply.http in (200, 404, 409), act, reply)
        if not exists:
            return _unless(reply.http in (404, 409), act, reply)
        if exists and self._is_untouched(before):
            return _unless(reply.http == 200, act, reply)
        return _unless(reply.http == 409 or not stands, act, reply)

    def _relink(self, payment: Payment, to: str, is_user: bool) -> None:
        before = payment.order, payment.email
        if is_user:
            payment.email, payment.order = to, None
        else:
            if payment.order not in (None, to):
                self._model.left.add(payment.order)
            payment.order = to
        payment.was_linked = True
        if (payment.order, payment.email) != before:
            payment.acceptance = None

    def accept(self, act: Act, is_quiet: bool) -> list[str]:
        """PAY-11: one captured sum for one target; everything else is NOT_ACCEPTABLE."""
        asked = self._asked(act, "accept", {"reason": "agreed with the customer"})
        if asked is None:
            return []
        payment, reply = asked
        wrong = _unless(reply.http in (200, 409), act, reply)
        if reply.http == 409:
            wrong += _unless(reply.json["code"] == "NOT_ACCEPTABLE", act, reply)
        if is_quiet:
            allowed = self._accept_answers(payment)
            wrong += _unless(reply.http in allowed, act, reply, f"expected {allowed}")
        if reply.http == 200 and (shown := reply.json["accepted"]):
            amount = minor(shown["amount"], payment.currency)
            was_applied = reply.json["applied_at"] is not None
            payment.acceptance = Acceptance(amount, shown["for"], was_applied)
            if is_quiet:
                known = payment.captured if self._model.target(payment) == shown["for"] else None
                is_right = payment.order is None or amount <= (known or 0)
                wrong += _unless(is_right, act, reply, "it accepts another sum or target")
        return wrong

    def _accept_answers(self, payment: Payment) -> set[int]:
        """Which answers are right, of a state that is known."""
        obstacles = self._model.obstacles(payment)
        if payment.acceptance is not None:
            return {200, 409}  # it may be a repeat
        if not payment.held:
            return {409}
        if obstacles == {"AMOUNT_MISMATCH"}:
            return {200}
        if obstacles & {"AMOUNT_MISMATCH"}:
            return {200, 409}
        if obstacles:
            return {409}
        is_more = max(self._model.applicable(payment)) < payment.held
        return ({200} if self._stands(payment) else {200, 409}) if is_more else {409}

    def mark(self, act: Act, is_quiet: bool) -> list[str]:
        """PAY-8: what is applied is refunded and not marked."""
        stands = self._stands(self._model.payments[act.payment])
        asked = self._asked(act, "mark-for-refund", {"reason": "sold out"})
        if asked is None:
            return []
        payment, reply = asked
        payment.is_marked |= reply.http == 200
        if is_quiet and stands:
            return _unless(reply.http == 409, act, reply)
        if is_quiet and payment.held and self._is_untouched(payment):
            return _unless(reply.http == 200, act, reply)
        return _unless(reply.http in (200, 409), act, reply)

    def unmark(self, act: Act, is_quiet: bool) -> list[str]:
        asked = self._asked(act, "unmark-for-refund", {"reason": "found one"})
        if asked is None:
            return []
        payment, reply = asked
        was_marked, payment.is_marked = payment.is_marked, payment.is_marked and reply.http != 200
        return _unless(reply.http == 200 or not was_marked, act, reply)

    def cancel(self, act: Act, is_quiet: bool) -> list[str]:
        """FUL-3: an order that is not paid is closed, for good."""
        order = self._model.orders.get(act.to or "")
        paid_by = [one for one in self._model.payments.values() if self._stands(one)]
        reply = self._cluster.api("POST", f"/orders/{act.to}/cancel")
        if reply.http == 200:
            self._model.closed.add(act.to or "")
        if not is_quiet:
            return _unless(reply.http in (200, 404, 409), act, reply)
        if order is None:
            return _unless(reply.http == 404, act, reply)
        is_paid = order.is_free or any(one.order == act.to for one in paid_by)
        return _unless(reply.http == (409 if is_paid else 200), act, reply, f"paid: {is_paid}")

    def refund(self, act: Act, is_quiet: bool) -> list[str]:
        """PAY-13: it counts once by its id, and never exceeds what was captured."""
        payment, is_outside = self._model.payments[act.payment], act.how == "outside"
        body = {
            "refund_id": act.to,
            "amount": major(act.amount, payment.currency),
            "reason": "the customer called",
            "outside_gateway": is_outside,
        }
        expected = self._refund_answers(payment, act)
        asked = self._asked(act, "refunds", body)
        if asked is None:
            return []
        payment, reply = asked
        if reply.http in (200, 201):
            payment.returned[act.to or ""] = (act.amount, is_outside)
            self._model.refunds[payment.source, act.to or ""] = payment.name
        if not is_quiet:
            expected = {200, 201, 409, 422}
        return _unless(reply.http in expected, act, reply, f"expected {expected}")

    def _refund_answers(self, payment: Payment, act: Act) -> set[int]:
        """Which answers are right, of a state that is known."""
        refund_id, told = act.to or "", (act.amount, act.how == "outside")
        if refund_id in payment.returned:
            return {200} if payment.returned[refund_id] == told else {409}
        if (payment.source, refund_id) in self._model.refunds:
            return {409, 422}  # it may be too much, too
        after = replace(payment, returned={**payment.returned, refund_id: told})
        if after.refunded <= payment.captured and not payment.has("canceled"):
            return {201}
        recorded = sum(amount for amount, _ in after.returned.values())
        is_more = after.refunded > payment.refunded or recorded > payment.captured
        return {422} if is_more and not payment.has("canceled") else {201, 422}

    def spend(self, act: Act, is_quiet: bool) -> list[str]:
        """The owner of a wallet spends some of what is there."""
        wallet_id = self._wallets.get(act.to or "")
        if wallet_id is None:
            return []
        found = self._cluster.api("GET", f"/wallets/{wallet_id}").json
        available = minor(found["available"], found["currency"])
        if available < 2:
            return []
        amount = available // 2
        name, said = f"spent-{uuid4().hex}", major(amount, found["currency"])
        body = {"payment_id": name, "amount": said}
        reserved = self._cluster.api("POST", f"/wallets/{wallet_id}/reservations", body)
        if reserved.http != 201:
            return _unless(reserved.http == 409 and not is_quiet, act, reserved)
        reply = self._cluster.api("POST", f"/reservations/{name}/commit", {})
        spent = self._model.spent
        spent[act.to or ""] = spent.get(act.to or "", 0) + amount * (reply.http == 200)
        return _unless(reply.http == 200, act, reply)

    def _stands(self, payment: Payment) -> bool:
        """Whether it is applied and holds money, as the API shows it before the action."""
        if not payment.held or (shown := self._cluster.shown(payment)) is None:
            return False
        return shown["applied_at"] is not None and shown["review"] in (None, "EXCESS")

    def _is_untouched(self, payment: Payment) -> bool:
        """Whether nothing can ever have been given for it."""
        return self._model.applicable(payment) == {0} and payment.acceptance is None


Action = Callable[[Operators, Act, bool], list[str]]
ACTIONS: Final[Mapping[str, Action]] = {
    "link": Operators.link,
    "accept": Operators.accept,
    "mark": Operators.mark,
    "unmark": Operators.unmark,
    "cancel": Operators.cancel,
    "spend": Operators.spend,
    "refund": Operators.refund,
}


def order_request(order: Order, wallets: Mapping[str, str]) -> dict[str, Any]:
    """The body that creates an order."""
    said = {
        "reference": order.reference,
        "amount": major(order.amount, order.currency),
        "currency": order.currency,
        "kind": order.kind,
        "email": order.email,
        "plan_id": order.plan,
        "wallet_id": order.wallet and wallets[order.wallet],
        "sources": list(order.sources) or None,
        "expires_at": None
        if order.expires is None
        else (EPOCH + timedelta(minutes=order.expires)).isoformat(),
    }
    return {name: value for name, value in said.items() if value is not None}


def _unless(is_right: bool, act: Act, reply: Reply, why: str = "") -> list[str]:
    told = reply.body.decode()[:300]
    return [] if is_right else [f"{act} was answered {reply.http} {told} {why}"]
