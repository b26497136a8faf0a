"""HTTP routes of users and subscriptions."""

from uuid import UUID

from fastapi import FastAPI, Response

from paidonce.api.requests import Operator, Reader
from paidonce.core.input import Input, Text
from paidonce.db.paging import Page
from paidonce.linking.linker import User
from paidonce.users.service import SubscriptionView, UserService


class NewUser(Input):
    """A user with a verified e-mail address: payments under it belong to this user."""

    email: Text


def add_to(api: FastAPI, users: UserService) -> None:
    @api.post("/api/v1/users", status_code=201, tags=["users"])
    async def create_user(body: NewUser, actor: Operator, answer: Response) -> User:
        """Create a user. A repeat returns the existing user, with 200.

        Payments that were waiting for the user are applied before the response.
        """
        user, is_new = await users.create(body.email, actor)
        answer.status_code = 201 if is_new else 200
        return user

    @api.get("/api/v1/users", tags=["users"])
    async def find_users(email: Text, actor: Reader) -> Page[User]:
        """The user with this e-mail address, in any letter case."""
        return Page(items=await users.find_by_email(email))

    @api.get("/api/v1/users/{user_id}", tags=["users"])
    async def get_user(user_id: UUID, actor: Reader) -> User:
        """One user."""
        return await users.get(user_id)

    @api.get("/api/v1/subscriptions", tags=["subscriptions"])
    async def list_subscriptions(
        actor: Reader, user_id: UUID | None = None, email: Text | None = None
    ) -> Page[SubscriptionView]:
        """The subscriptions of a user, by id or e-mail address."""
        return Page(items=await users.subscriptions(user_id=user_id, email=email))
