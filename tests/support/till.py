"""A shop whose orders top up wallets: what is given twice or lost can be counted there."""

from dataclasses import dataclass
from typing import Any, Final, cast

from uuid_utils.compat import uuid7

from paidonce.core.events import EventType, OrderId, WalletId
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order
from paidonce.errors import ConflictError
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, ResultKind
from paidonce.processing.transactions import Processor
from paidonce.wallet import store as wallet_store
from tests.support.batches import Stage

PRICE: Final = 99_000


@dataclass(frozen=True)
class Till:
    """What the merchant and his gateway do, and what has to be true after it."""

    stage: Stage
    linker: Linker

    async def order(self, reference: str) -> WalletId:
        """An order of a top-up, and its own wallet."""
        wallet_id = await self.wallet(reference)
        await self.linker.create_order(self.new_order(reference, wallet_id), b"same", "somebody")
        return wallet_id

    async def wallet(self, reference: str) -> WalletId:
        async with self.stage.database.transaction() as connection:
            row, _ = await wallet_store.create_wallet(connection, uuid7(), reference, "RUB")
        return WalletId(row["id"])

    def new_order(self, reference: str, wallet_id: WalletId) -> Order:
        amount = Money(PRICE, "RUB")
        return Order(OrderId(uuid7()), reference, Kind.WALLET, amount, wallet_id=wallet_id)

    def paid(self, payment: str, reference: str, **said: Any) -> Incoming:
        return self.stage.paid(payment, email=None, order=reference, **said)

    def refunded(self, payment: str, amount_minor: int = PRICE) -> Incoming:
        return self.stage.event(
            EventType.REFUNDED,
            payment,
            amount_minor=amount_minor,
            currency="RUB",
            key=f"back:{payment}",
        )

    async def processed(self, *items: Incoming) -> None:
        """Settle, coming again for as long as somebody holds what is needed, as the group does."""
        processor = Processor(self.stage.database, self.stage.rules)
        left = list(items)
        for _ in range(500):
            results = (await processor.process(left)).results
            left = [cast("Incoming", one.item) for one in results if one.kind is ResultKind.LOCKED]
            if not left:
                break
        await processor.close()
        assert not left, "it is busy for ever"

    async def closed(self, reference: str) -> bool:
        """Close the order, and say whether that was allowed."""
        try:
            await self.linker.close_order(reference, "somebody")
        except ConflictError:
            return False
        return True

    async def check(self, reference: str) -> dict[str, Any]:
        """The order, after everything that has to be true of it was looked at."""
        order = await self.stage.one("SELECT * FROM orders WHERE reference = $1", reference)
        payments = await self.stage.rows(
            "SELECT * FROM payments WHERE order_reference = $1", reference
        )
        holding = [one for one in payments if one["captured_minor"] > one["refunded_minor"]]
        counting = [one for one in holding if one["id"] == order["applied_payment_id"]]
        is_paid = order["status"] == "PAID"
        assert is_paid == (bool(holding) and order["closed_at"] is None) == bool(counting)
        left_over = "ORDER_CLOSED" if order["closed_at"] else "DUPLICATE_PAYMENT"
        for one in payments:
            is_left = one in holding and one not in counting
            assert one["review"] == (left_over if is_left else None)
        wallet = await self.stage.one("SELECT * FROM wallets WHERE id = $1", order["wallet_id"])
        left = counting[0]["captured_minor"] - counting[0]["refunded_minor"] if counting else 0
        assert wallet["balance_minor"] - wallet["receivable_minor"] == left
        account = f"wallet:{wallet['id']}"
        explained = await self.stage.one(
            "SELECT coalesce(sum(amount_minor), 0)::bigint AS minor FROM ledger_entries"
            " WHERE account = $1",
            account,
        )
        assert explained["minor"] == wallet["balance_minor"]
        await self._check_told(payments)
        return order

    async def _check_told(self, payments: list[dict[str, Any]]) -> None:
        """No event has failed for a fault of ours; each payment was told of once if applied."""
        faults = "SELECT 1 FROM webhook_events WHERE error_code = 'INTERNAL'"
        assert await self.stage.rows(faults) == []
        for one in payments:
            told = await self.stage.rows(
                "SELECT 1 FROM outbox WHERE type = 'payment.applied' AND aggregate_id = $1",
                one["id"],
            )
            assert len(told) == (one["applied_at"] is not None)
