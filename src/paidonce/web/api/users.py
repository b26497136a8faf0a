"""Users and their subscriptions."""

from uuid import UUID

from fastapi import FastAPI, Response, status
from pydantic import BaseModel, ConfigDict

from paidonce.engine.linking import User
from paidonce.views import SubscriptionView
from paidonce.web.api.shapes import Page, Text
from paidonce.web.auth import Operator, Reader, Verbs


class NewUser(BaseModel):
    """Says that the address was verified: payments made under it are this user's."""

    model_config = ConfigDict(extra="forbid")
    email: Text


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post("/api/v1/users", status_code=status.HTTP_201_CREATED, tags=["users"])
    async def create_user(body: NewUser, verbs: Verbs, actor: Operator, answer: Response) -> User:
        """Create a user. A repeat returns the one that is there, with 200.

        What was paid under the address before is applied when the answer arrives.
        """
        user, is_new = await verbs.create_user(body.email, actor)
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return user

    @api.get("/api/v1/users", tags=["users"])
    async def find_users(email: Text, verbs: Verbs, actor: Reader) -> Page[User]:
        """The user with this address, in any letter case."""
        return Page(items=await verbs.users_by_email(email))

    @api.get("/api/v1/users/{user_id}", tags=["users"])
    async def get_user(user_id: UUID, verbs: Verbs, actor: Reader) -> User:
        """One user."""
        return await verbs.user(user_id)

    @api.get("/api/v1/subscriptions", tags=["subscriptions"])
    async def list_subscriptions(
        verbs: Verbs, actor: Reader, user_id: UUID | None = None, email: Text | None = None
    ) -> Page[SubscriptionView]:
        """The subscriptions of one user, found by id or by address."""
        return Page(items=await verbs.subscriptions(user_id=user_id, email=email))
