"""Reservations and gateways move the same wallets at the same time."""

import asyncio
from typing import Final
from uuid import uuid4

from paidonce.bootstrap.services import Services
from paidonce.linking.linker import Linker
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.reservations import CommandResult, Commit, RejectReason, Release, Reserve
from tests.support.batches import Stage
from tests.support.till import PRICE, Till
from tests.wallet.scenarios import balances

NUMBER: Final = 12
PART: Final = PRICE // 10


async def test_top_ups_and_refunds_while_the_money_is_spent(shop: Stage) -> None:
    """WAL-2 FUL-4: neither overwrites what the other wrote; what is spent cannot be taken back."""
    till = Till(shop, Linker(shop.database, shop.rules))
    wallet_id = await till.wallet("one")
    for number in range(NUMBER):
        order = till.new_order(f"o-{number}", wallet_id)
        await till.linker.create_order(order, b"same", "somebody")
    services = [WalletCommands(shop.database), WalletCommands(shop.database)]

    async def gateway(number: int) -> None:
        await till.processed(till.paid(f"p-{number}", f"o-{number}"))
        if number % 2:
            await till.processed(till.refunded(f"p-{number}"))

    async def customer(number: int) -> list[CommandResult]:
        service, results = services[number % 2], []
        for turn in range(8):
            payment = uuid4().hex
            results.append(await service.execute(Reserve(payment, wallet_id, PART)))
            end = Commit(payment) if turn % 2 else Release(payment)
            results.append(await service.execute(end))
        return results

    work = [gateway(number) for number in range(NUMBER)]
    answers = await asyncio.gather(*work, *(customer(number) for number in range(NUMBER)))
    results = [one for answer in answers if answer for one in answer]
    assert {one.reject_reason for one in results} <= {None, RejectReason.INSUFFICIENT_FUNDS}
    spent = sum(bool(one.entries) for one in results) * PART
    balance, reserved = await balances(shop.database, wallet_id)
    owed = await shop.one("SELECT receivable_minor AS minor FROM wallets WHERE id = $1", wallet_id)
    assert reserved == 0
    assert balance - owed["minor"] == NUMBER // 2 * PRICE - spent
    assert await Services(shop.database, shop.rules).wallets.verify() == []
    for service in services:
        await service.stop()
