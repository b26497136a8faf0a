"""Reservations and gateways move the same wallets at the same time."""

import asyncio
from typing import Final
from uuid import uuid4

from paidonce.domain.reservations import Commit, Judged, Refusal, Release, Reserve
from paidonce.engine.linking import Linker
from paidonce.operations import Operations
from paidonce.services.wallet import WalletService
from tests.services.purse import standing
from tests.store.batches import Stage
from tests.store.till import PRICE, Till

NUMBER: Final = 12
PART: Final = PRICE // 10


async def test_top_ups_and_refunds_while_the_money_is_spent(shop: Stage) -> None:
    """WAL-2 FUL-4: neither overwrites what the other wrote; what is spent cannot be taken back."""
    till = Till(shop, Linker(shop.database, shop.rules))
    wallet_id = await till.wallet("one")
    for number in range(NUMBER):
        order = till.new_order(f"o-{number}", wallet_id)
        await till.linker.create_order(order, "somebody")
    services = [WalletService(shop.database), WalletService(shop.database)]

    async def gateway(number: int) -> None:
        await till.settled(till.paid(f"p-{number}", f"o-{number}"))
        if number % 2:
            await till.settled(till.refunded(f"p-{number}"))

    async def customer(number: int) -> list[Judged]:
        service, judged = services[number % 2], []
        for turn in range(8):
            payment = uuid4().hex
            judged.append(await service.do(Reserve(payment, wallet_id, PART)))
            end = Commit(payment) if turn % 2 else Release(payment)
            judged.append(await service.do(end))
        return judged

    work = [gateway(number) for number in range(NUMBER)]
    answers = await asyncio.gather(*work, *(customer(number) for number in range(NUMBER)))
    judged = [one for answer in answers if answer for one in answer]
    assert {one.refusal for one in judged} <= {None, Refusal.INSUFFICIENT_FUNDS}
    spent = sum(bool(one.entries) for one in judged) * PART
    balance, reserved = await standing(shop.database, wallet_id)
    owed = await shop.one("SELECT receivable_minor AS minor FROM wallets WHERE id = $1", wallet_id)
    assert reserved == 0
    assert balance - owed["minor"] == NUMBER // 2 * PRICE - spent
    assert await Operations(shop.database, shop.rules).verify_wallets() == []
    for service in services:
        await service.stop()
