"""`paidonce users` and `paidonce subscriptions`."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from paidonce.db.paging import all_pages
from paidonce.terminal.commands import Commands, Limit, OptionalReason, Reason, Result, Yes
from paidonce.terminal.output import (
    columns,
    confirm,
    print_fields,
    print_json,
    print_table,
    stderr,
)
from paidonce.terminal.session import Services, Use, operator
from paidonce.users.model import CancelRequest, UserQuery

if TYPE_CHECKING:
    from paidonce.linking.linker import User
    from paidonce.users.model import SubscriptionDetail
    from paidonce.users.person import ErasedUser

commands = Commands("users", "Users: addresses, merging, export, erasure.")
subscriptions = Commands("subscriptions", "Subscriptions and their periods.")

UserName = Annotated[str, typer.Argument(metavar="USER", help="An id or an e-mail address.")]
Email = Annotated[str, typer.Argument(metavar="EMAIL", help="A verified e-mail address.")]

USERS: Final = columns(
    "created_at as created, email, former, erased_at as erased, id",
    former=lambda user: ", ".join(user.former_emails),
)
SUBSCRIPTIONS: Final = columns("product, status, current_period_end as until, user_id as user, id")
PERIODS: Final = columns(
    "start, end, granted_at as granted, plan_id as plan, payment_status as status, "
    "payment_id as payment"
)


@commands.operation("list", USERS, use=Use.STORED)
def list_users(services: Services, query: UserQuery, limit: Limit = 50) -> Result:
    """List users, newest first."""
    return all_pages(services.users.search, query, limit)


def _print_user(user: "User") -> None:
    print_fields(user)
    if user.former_emails:
        stderr.print(f"Former addresses: {', '.join(user.former_emails)}")


@commands.operation("show", _print_user, use=Use.STORED)
def show_user(services: Services, user: UserName) -> Result:
    """Show one user."""
    return services.users.find(user)


@commands.operation("create", _print_user)
async def create_user(services: Services, email: Email) -> object:
    """Create a user; payments that were waiting are applied. A repeat shows the existing one."""
    user, _ = await services.users.create(email, operator())
    return user


@commands.operation("change-email", _print_user)
async def change_email(services: Services, user: UserName, email: Email) -> object:
    """Change the address of a user. The old one still leads to the user until another has it."""
    found = await services.users.find(user)
    return await services.users.change_email(found.id, email, operator())


@commands.operation("merge", _print_user)
async def merge_users(
    services: Services,
    user: UserName,
    into: Annotated[str, typer.Option(help="The user that remains: an id or an e-mail address.")],
    reason: Reason,
) -> object:
    """Merge a user into another one, which remains."""
    gone, kept = await services.users.id_of(user), await services.users.id_of(into)
    return await services.users.merge(gone, kept, operator(), reason)


@commands.operation("export", print_json, use=Use.STORED)
async def export_user(services: Services, user: UserName) -> object:
    """Print all that is known of a user, as JSON."""
    found = await services.users.find(user)
    return await services.users.export(found.id, operator())


def _print_erased(erased: "ErasedUser") -> None:
    print_fields(erased.user)
    stderr.print(
        f"Erased: {erased.events} events, {erased.payments} payments, {erased.orders} orders."
    )


@commands.operation("erase", _print_erased)
async def erase_user(
    services: Services, user: UserName, reason: Reason, yes: Yes = False
) -> object:
    """Erase the personal data of a user. This cannot be undone."""
    found = await services.users.find(user)
    if not yes:
        question = f"Erase the personal data of user {found.id}? This cannot be undone."
        if not await asyncio.to_thread(confirm, question):
            raise typer.Abort
    return await services.users.erase(found.id, operator(), reason)


@subscriptions.operation("list", SUBSCRIPTIONS, use=Use.STORED)
def list_subscriptions(
    services: Services,
    user_id: Annotated[UUID | None, typer.Option(help="Of the user with this id.")] = None,
    email: Annotated[str | None, typer.Option(help="Of the user with this address.")] = None,
) -> Result:
    """List the subscriptions of a user."""
    return services.users.subscriptions(user_id=user_id, email=email)


def _print_subscription(subscription: "SubscriptionDetail") -> None:
    print_fields(subscription)
    print_table(subscription.periods, PERIODS)


@subscriptions.operation("show", _print_subscription, use=Use.STORED)
def show_subscription(services: Services, subscription_id: UUID) -> Result:
    """Show a subscription with its periods, and the payment that granted each."""
    return services.users.subscription(subscription_id)


@subscriptions.operation("cancel", _print_subscription)
def cancel_subscription(
    services: Services, subscription_id: UUID, request: CancelRequest
) -> Result:
    """Cancel a subscription. Later payments for it are kept and not applied."""
    return services.users.cancel_subscription(
        subscription_id, request.at, operator(), request.reason
    )


@subscriptions.operation("resume", _print_subscription)
def resume_subscription(
    services: Services, subscription_id: UUID, reason: OptionalReason = None
) -> Result:
    """Resume a canceled subscription; payments that arrived meanwhile are applied."""
    return services.users.resume_subscription(subscription_id, operator(), reason)
