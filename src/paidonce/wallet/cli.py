"""`paidonce wallet`."""

from typing import Annotated, Final
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from paidonce.db.paging import all_pages
from paidonce.terminal.commands import Commands, Json, Limit, Result, parse_time
from paidonce.terminal.output import columns, progress_bar, show, stderr, stdout
from paidonce.terminal.session import Config, Services, Use, operate, operator
from paidonce.wallet.model import EntryQuery

commands = Commands("wallet", "Wallets, reservations and the ledger.")

PaymentId = Annotated[str, typer.Argument(help="The payment id of the reservation.")]
Owner = Annotated[str, typer.Option(help="Your name for the owner.")]

WALLETS: Final = columns("currency, balance, reserved, available, receivable, id")
ENTRIES: Final = columns(
    "at, account, amount, reason as for, movement_id as movement",
    amount=lambda entry: f"{entry.amount} {entry.currency}",
    reason=lambda entry: entry.reservation or entry.payment,
)
DISCREPANCIES: Final = columns(
    "kind, recorded, expected, id",
    recorded=lambda one: f"{one.recorded} {one.currency}",
    expected=lambda one: f"{one.expected} {one.currency}",
)


@commands.operation("create")
async def create_wallet(
    services: Services,
    owner: Owner,
    currency: Annotated[str, typer.Option(help="The currency of the wallet.")],
) -> object:
    """Create a wallet. A repeat shows the existing one."""
    wallet, _ = await services.wallets.create(owner, currency, operator())
    return wallet


@commands.operation("show", use=Use.STORED)
def show_wallet(
    services: Services,
    wallet_id: UUID,
    at: Annotated[str | None, typer.Option(help="At this time: ISO 8601, or 7d, 12h ago.")] = None,
) -> Result:
    """Show a wallet, now or as it was at a time."""
    return services.wallets.get(wallet_id, parse_time("--at", at))


@commands.operation("list", WALLETS, use=Use.STORED)
def list_wallets(services: Services, owner: Owner) -> Result:
    """List an owner's wallets, one for each currency."""
    return services.wallets.list_by_owner(owner)


@commands.operation("reserve")
async def reserve(
    services: Services,
    wallet_id: UUID,
    payment_id: PaymentId,
    amount: Annotated[str, typer.Argument(help="In the wallet's currency, such as 9.90.")],
    expires_in: Annotated[
        int | None, typer.Option(min=0, help="Seconds until it expires; 0 means never.")
    ] = None,
) -> object:
    """Reserve an amount for a payment. A repeat shows the existing reservation."""
    reservation, _ = await services.wallets.reserve(
        wallet_id, payment_id, amount, expires_in_s=expires_in, actor=operator()
    )
    return reservation


@commands.operation("commit")
def commit(
    services: Services,
    payment_id: PaymentId,
    amount: Annotated[str | None, typer.Option(help="Only this part of it.")] = None,
) -> Result:
    """Commit a reservation; the rest becomes available again."""
    return services.wallets.commit(payment_id, amount, operator())


@commands.operation("release")
def release(services: Services, payment_id: PaymentId) -> Result:
    """Release a reservation."""
    return services.wallets.release(payment_id, operator())


@commands.operation("entries", ENTRIES, use=Use.STORED)
def list_entries(services: Services, wallet_id: UUID, limit: Limit = 50) -> Result:
    """List the ledger entries of a wallet, newest first."""
    return all_pages(lambda query: services.wallets.entries(wallet_id, query), EntryQuery(), limit)


@commands.command("verify")
def verify(config: Config = None, json: Json = False) -> None:
    """Verify every wallet and every movement against the ledger; exit code 1 if one is wrong."""
    with progress_bar(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    ) as update:

        def progress(what: str, done: int, total: int) -> None:
            update(description=what, completed=done, total=max(done, total))

        found = operate(config, lambda services: services.wallets.verify(progress), Use.STORED)
    if found or json:
        show(found, json, DISCREPANCIES)
    if found:
        stderr.print(f"Amounts that differ from the ledger: {len(found)}")
        raise typer.Exit(1)
    if not json:
        stdout.print("Every wallet agrees with the ledger, and every movement sums to zero.")
