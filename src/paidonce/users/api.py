"""HTTP routes of users and subscriptions."""

from uuid import UUID

from fastapi import FastAPI, Response

from paidonce.api.requests import Admin, FromQuery, Operator, Reader
from paidonce.core.input import OptionalReason, Reason, Text
from paidonce.db.paging import Page
from paidonce.linking.linker import User
from paidonce.users.model import (
    CancelRequest,
    Email,
    MergeRequest,
    SubscriptionDetail,
    SubscriptionView,
    UserQuery,
)
from paidonce.users.person import ErasedUser, UserExport
from paidonce.users.service import UserService


def add_to(api: FastAPI, users: UserService) -> None:
    _add_people(api, users)
    _add_subscriptions(api, users)


def _add_people(api: FastAPI, users: UserService) -> None:
    @api.post("/api/v1/users", status_code=201, tags=["users"])
    async def create_user(body: Email, actor: Operator, answer: Response) -> User:
        """Create a user. A repeat returns the existing user, with 200.

        Payments that were waiting for the user are applied before the response.
        """
        user, is_new = await users.create(body.email, actor)
        answer.status_code = 201 if is_new else 200
        return user

    @api.get("/api/v1/users", tags=["users"])
    async def list_users(query: FromQuery[UserQuery], actor: Reader) -> Page[User]:
        """Users, newest first; with `email`, the user with this address."""
        return await users.search(query)

    @api.get("/api/v1/users/{user_id}", tags=["users"])
    async def get_user(user_id: UUID, actor: Reader) -> User:
        """One user. The id of a user that was merged leads to the remaining one."""
        return await users.get(user_id)

    @api.patch("/api/v1/users/{user_id}", tags=["users"])
    async def change_email(user_id: UUID, body: Email, actor: Operator) -> User:
        """Change the e-mail address of a user.

        Payments that were waiting for the new address are applied before the response. The old
        address still leads to the user, until another user has it. An address that is the current
        one of another user is 409.
        """
        return await users.change_email(user_id, body.email, actor)

    @api.post("/api/v1/users/{user_id}/merge", tags=["users"])
    async def merge_users(user_id: UUID, body: MergeRequest, actor: Operator) -> User:
        """Merge a user into another one, which remains.

        Addresses, payments, orders, subscriptions and wallets go over, and the id of the merged
        user leads to the remaining one. A repeat is 200. Merging a user into itself is 409, and so
        is a wallet with open reservations.
        """
        return await users.merge(user_id, body.into, actor, body.reason)

    @api.get("/api/v1/users/{user_id}/export", tags=["users"])
    async def export_user(user_id: UUID, actor: Operator) -> UserExport:
        """All that is known of a user, in one snapshot, for the person who asks for their data."""
        return await users.export(user_id, actor)

    @api.post("/api/v1/users/{user_id}/erase", tags=["users"])
    async def erase_user(user_id: UUID, body: Reason, actor: Admin) -> ErasedUser:
        """Erase the personal data of a user. This cannot be undone.

        Addresses, and headers and bodies of events, are replaced; money, ids and the audit log
        stay. Erased events cannot be reprocessed. A repeat erases what has arrived since. While
        events of the user are not finished it is 409.
        """
        return await users.erase(user_id, actor, body.reason)


def _add_subscriptions(api: FastAPI, users: UserService) -> None:
    @api.get("/api/v1/subscriptions", tags=["subscriptions"])
    async def list_subscriptions(
        actor: Reader, user_id: UUID | None = None, email: Text | None = None
    ) -> Page[SubscriptionView]:
        """The subscriptions of a user, by id or e-mail address."""
        return Page(items=await users.subscriptions(user_id=user_id, email=email))

    @api.get("/api/v1/subscriptions/{subscription_id}", tags=["subscriptions"])
    async def get_subscription(subscription_id: UUID, actor: Reader) -> SubscriptionDetail:
        """One subscription with its periods, and the payment that granted each."""
        return await users.subscription(subscription_id)

    @api.post("/api/v1/subscriptions/{subscription_id}/cancel", tags=["subscriptions"])
    async def cancel_subscription(
        subscription_id: UUID, body: CancelRequest, actor: Operator
    ) -> SubscriptionDetail:
        """Cancel a subscription: it ends now, or when its period is over.

        What was paid stays recorded. Later payments for it are kept and not applied
        (`SUBSCRIPTION_CANCELED`). A repeat is 200.
        """
        return await users.cancel_subscription(subscription_id, body.at, actor, body.reason)

    @api.post("/api/v1/subscriptions/{subscription_id}/resume", tags=["subscriptions"])
    async def resume_subscription(
        subscription_id: UUID, actor: Operator, body: OptionalReason | None = None
    ) -> SubscriptionDetail:
        """Resume a canceled subscription: its periods are as if it had not been canceled.

        Payments that arrived meanwhile are applied before the response.
        """
        reason = body.reason if body else None
        return await users.resume_subscription(subscription_id, actor, reason)
