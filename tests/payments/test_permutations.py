"""The 720 orders of one payment's life of six events, over HTTP, on a real server and database."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop, open_line

CONFIG: Final = shops.CONFIG
LINES: Final = 8
"""How many lives are told at once."""

Said = tuple[str, str | None]
TO_THE_FULL_REFUND: Final[Sequence[Said]] = (
    ("payment.pending", "990.00"),
    ("payment.failed", "990.00"),
    ("payment.canceled", "990.00"),
    ("payment.succeeded", "990.00"),
    ("payment.refunded", "300.00"),
    ("payment.refunded", "990.00"),
)
TO_A_PARTIAL_REFUND: Final[Sequence[Said]] = (
    *TO_THE_FULL_REFUND[:4],
    ("payment.refunded", "300.00"),
    ("payment.refunded", "400.00"),
)
SHARE: Final = 6
ENDS: Final = {
    "booking": (TO_THE_FULL_REFUND, "REFUNDED", "REFUNDED", "CANCELED"),
    "wallet": (TO_A_PARTIAL_REFUND, "PARTIALLY_REFUNDED", "PAID", "590.00"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_all_orders_of_a_life_end_alike(
    shared: Shared, kind: str, request: pytest.FixtureRequest
) -> None:
    """PAY-2 PAY-3 PAY-6 FUL-2 FUL-4 REL-1: whenever the order itself is created, too.

    Each kind has a sixth of the 720 orders, and all of them in the long run.
    """
    shop = Shop(shared.service)
    life, payment_status, order_status, given = ENDS[kind]
    lives = list(enumerate(permutations(range(len(life)))))
    assert len(lives) == 720
    if not request.config.getoption("--soak"):
        lives = lives[list(ENDS).index(kind) :: SHARE]
    with ThreadPoolExecutor(LINES) as pool:
        list(pool.map(lambda line: _told(shop, kind, life, lives[line::LINES]), range(LINES)))

    rows = shared.rows(_ENDS_OF, f"{kind}-%")
    assert len(rows) == len(lives)
    assert {row["payment_status"] for row in rows} == {payment_status}
    assert {row["order_status"] for row in rows} == {order_status}
    assert {row["review"] for row in rows} == {None}
    if kind == "booking":
        found = {shop.booking(row["reference"])["status"] for row in rows[::40]}
        assert {row["is_fulfilled"] for row in rows} == {False}
    else:
        found = {shop.balance(str(row["wallet_id"]))[0] for row in rows[::40]}
        assert {row["balance_minor"] for row in rows} == {59_000}
        assert {row["counts"] for row in rows} == {True}
    assert found == {given}
    for told in ("paid_at", "failed_at", "voided_at", "order_paid_at", "refunded_at"):
        assert len({row[told] for row in rows}) == 1, told
    assert len({row["order_refunded_at"] for row in rows}) == 1
    assert {row["events"] for row in rows} == {len(life)}
    assert {row["applied_times"] for row in rows} <= {0, 1}


def _told(
    shop: Shop, kind: str, life: Sequence[Said], lives: Sequence[tuple[int, Sequence[int]]]
) -> None:
    """Tell some lives over one connection; the order is created somewhere in the midst of each."""
    with open_line(shop.service) as send:
        for number, life_order in lives:
            name = f"{kind}-{number}"
            order = {"reference": name, "kind": kind}
            if kind == "wallet":
                order["wallet_id"] = shop.wallet()
            for position, step in enumerate(life_order):
                if position == number // 2 % len(life):
                    shop.order(**order)
                what, amount = life[step]
                at = f"2026-11-15T10:0{step}:00Z"
                reply = shop.hears(what, f"p-{name}", amount=amount, order=name, at=at, send=send)
                assert reply.http == 200, reply.body


_ENDS_OF: Final = """
SELECT o.reference, o.status AS order_status, o.paid_at AS order_paid_at,
       o.refunded_at AS order_refunded_at, o.wallet_id, w.balance_minor,
       o.fulfilled_at IS NOT NULL AND o.reversed_at IS NULL AS is_fulfilled,
       o.applied_payment_id IS NOT DISTINCT FROM p.id AS counts,
       p.status AS payment_status, p.review, p.paid_at, p.failed_at, p.voided_at, p.refunded_at,
       (SELECT count(*) FROM webhook_events AS e
         WHERE e.order_reference = o.reference AND e.processed_at IS NOT NULL) AS events,
       (SELECT count(*) FROM outbox AS m
         WHERE m.aggregate_id = p.id AND m.type = 'payment.applied') AS applied_times
  FROM orders AS o
  JOIN payments AS p ON p.order_reference = o.reference
  LEFT JOIN wallets AS w ON w.id = o.wallet_id
 WHERE o.reference LIKE $1
"""
