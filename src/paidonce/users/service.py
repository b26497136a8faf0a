"""What merchants can ask about users, and create."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce.core.actors import HOST, Actor
from paidonce.core.email import is_email
from paidonce.db.pool import Database
from paidonce.db.queries import from_row, load_queries
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.linking import store as linking_store
from paidonce.linking.linker import Linker, User


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """The subscription of a user to a product."""

    id: UUID
    user_id: UUID
    product: str
    status: str
    current_period_end: datetime | None
    created_at: datetime
    updated_at: datetime


QUERIES: Final = load_queries(__file__)


class UserService:
    """Creates and finds users; shows their subscriptions."""

    def __init__(self, database: Database, linker: Linker) -> None:
        self._database = database
        self._linker = linker

    async def create(self, email: str, actor: Actor = HOST) -> tuple[User, bool]:
        """The user with this verified e-mail address, and whether it is new.

        Payments that were waiting for the user are applied. Raises InvalidRequestError.
        """
        if not is_email(email):
            raise InvalidRequestError("email is not an e-mail address")
        return await self._linker.create_user(email, actor.name)

    async def get(self, user_id: UUID) -> User:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await QUERIES["user_by_id"].row(connection, id=user_id)
        if row is None:
            raise NotFoundError(f"there is no user {user_id}")
        return from_row(User, row)

    async def find_by_email(self, email: str) -> list[User]:
        """The user with this e-mail address, if there is one."""
        async with self._database.connection() as connection:
            row = await linking_store.user_by_email(connection, email)
        return [] if row is None else [from_row(User, row)]

    async def subscriptions(
        self, *, user_id: UUID | None = None, email: str | None = None
    ) -> list[SubscriptionView]:
        """The subscriptions of a user, by id or e-mail address."""
        if (user_id is None) == (email is None):
            raise InvalidRequestError("give either user_id or email")
        if email is not None:
            users = await self.find_by_email(email)
            user_id = users[0].id if users else None
        if user_id is None:
            return []
        async with self._database.connection() as connection:
            rows = await QUERIES["subscriptions"].rows(connection, user_id=user_id)
        return [from_row(SubscriptionView, row) for row in rows]

    async def get_by_email(self, email: str) -> User:
        """The user with this e-mail address. Raises NotFoundError."""
        users = await self.find_by_email(email)
        if not users:
            raise NotFoundError("there is no user with this e-mail address")
        return users[0]
