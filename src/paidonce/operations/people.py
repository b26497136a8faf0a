"""Users and their subscriptions."""

from uuid import UUID

from paidonce.domain.email import is_email
from paidonce.engine.linking import User
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.operations.desk import HOST, Actor, Desk
from paidonce.store import people
from paidonce.views import SubscriptionView


class PeopleVerbs(Desk):
    """What can be asked of users, and done for them."""

    async def create_user(self, email: str, actor: Actor = HOST) -> tuple[User, bool]:
        """The user with this verified address, and whether it is new.

        What the user has paid for before is applied when this returns. Raises
        InvalidRequestError when the text is no address.
        """
        if not is_email(email):
            raise InvalidRequestError("email is not an e-mail address")
        return await self._linker.create_user(email, actor.name)

    async def user(self, user_id: UUID) -> User:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await people.user_by_id(connection, user_id)
        if row is None:
            raise NotFoundError(f"there is no user {user_id}")
        return User(row["id"], row["email"], row["created_at"])

    async def users_by_email(self, email: str) -> list[User]:
        """The user with this address, if there is one."""
        async with self._database.connection() as connection:
            row = await people.user_by_email(connection, email)
        return [] if row is None else [User(row["id"], row["email"], row["created_at"])]

    async def subscriptions(
        self, *, user_id: UUID | None = None, email: str | None = None
    ) -> list[SubscriptionView]:
        """The subscriptions of one user, found by id or address."""
        if (user_id is None) == (email is None):
            raise InvalidRequestError("give either user_id or email")
        if email is not None:
            users = await self.users_by_email(email)
            user_id = users[0].id if users else None
        if user_id is None:
            return []
        async with self._database.connection() as connection:
            rows = await people.subscriptions(connection, user_id)
        return [SubscriptionView(**dict(row)) for row in rows]

    async def only_user(self, email: str) -> User:
        """The user with this address. Raises NotFoundError."""
        users = await self.users_by_email(email)
        if not users:
            raise NotFoundError("there is no user with this e-mail address")
        return users[0]
