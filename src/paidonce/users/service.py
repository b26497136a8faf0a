"""What merchants can ask about users, and do with them."""

from typing import Final
from uuid import UUID

from paidonce.audit.store import record_action
from paidonce.core.actors import HOST, Actor
from paidonce.core.email import is_email
from paidonce.core.events import PaymentId
from paidonce.core.masking import Masker
from paidonce.db.paging import Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, from_row
from paidonce.errors import (
    ConflictError,
    DatabaseUnavailableError,
    InvalidRequestError,
    NotFoundError,
)
from paidonce.linking import store as linking_store
from paidonce.linking.linker import Linker, User
from paidonce.processing.items import Rules
from paidonce.users import merge as merging
from paidonce.users import person, store
from paidonce.users.model import CancelAt, SubscriptionDetail, SubscriptionView, UserQuery
from paidonce.users.person import ErasedUser, UserExport, add_erased

MAX_ROUNDS: Final = 100
"""How many transactions one erasure makes at most."""


class UserService:
    """Creates, finds and changes users; shows their subscriptions."""

    def __init__(self, database: Database, linker: Linker, masker: Masker) -> None:
        self._database = database
        self._linker = linker
        self._masker = masker

    async def create(self, email: str, actor: Actor = HOST) -> tuple[User, bool]:
        """The user with this verified e-mail address, and whether it is new.

        Payments that were waiting for the user are applied. Raises InvalidRequestError.
        """
        _require_address(email)
        return await self._linker.create_user(email, actor.name)

    async def change_email(self, user_id: UUID, email: str, actor: Actor = HOST) -> User:
        """Give the user another verified address; payments that wait for it are applied.

        The address before still leads to the user, until somebody else has it. Raises
        InvalidRequestError, NotFoundError, or ConflictError if another user has it.
        """
        _require_address(email)
        return await self._linker.change_email(user_id, email, actor.name)

    async def merge(self, user_id: UUID, into: UUID, actor: Actor, reason: str) -> User:
        """Merge a user into another one; returns the remaining one. A repeat changes nothing.

        Money that waited for a canceled subscription is applied if the remaining one runs. Raises
        NotFoundError, or ConflictError: the same user, a wallet with open reservations.
        """

        async def merge_both(connection: Connection, rules: Rules) -> list[PaymentId]:
            merged = await merging.merge(connection, rules, user_id, into, actor.name, reason)
            return await store.payments_of_canceled(connection, merged)

        await self._linker.change_and_apply(merge_both)
        return await self.get(into)

    async def export(self, user_id: UUID, actor: Actor) -> UserExport:
        """All that is known of a user, in one snapshot. Raises NotFoundError."""
        async with self._database.connection() as connection:
            found = await person.export(connection, user_id, self._masker)
            await record_action(connection, actor.name, "user_exported", user_id=found.user.id)
        return found

    async def erase(self, user_id: UUID, actor: Actor, reason: str) -> ErasedUser:
        """Erase the personal data of a user; money, ids and the audit log stay.

        A repeat erases what has arrived since. Raises NotFoundError, or ConflictError while events
        of the user are not finished.
        """

        async def erase_some(connection: Connection, rules: Rules) -> ErasedUser:
            return await person.erase(connection, user_id, actor.name, reason)

        erased = await self._linker.run(erase_some)
        for _ in range(MAX_ROUNDS):
            more = await self._linker.run(erase_some)
            erased = add_erased(erased, more)
            if not (more.events or more.payments or more.orders):
                return erased
        raise DatabaseUnavailableError("there is more to erase: erase the user again")

    async def get(self, user_id: UUID) -> User:
        """The user with this id, or the one that it was merged into. Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await linking_store.user_by_id(connection, user_id)
        if row is None:
            raise NotFoundError(f"there is no user {user_id}")
        return from_row(User, row)

    async def find(self, name: str) -> User:
        """The user with this id or e-mail address. Raises NotFoundError."""
        return await self.get(await self.id_of(name))

    async def id_of(self, name: str) -> UUID:
        """The id as it is given, or that of the user with this address. Raises NotFoundError."""
        try:
            return UUID(name)
        except ValueError:
            return (await self.get_by_email(name)).id

    async def search(self, query: UserQuery) -> Page[User]:
        """Users, newest first."""
        if query.email is not None:
            return Page(await self.find_by_email(query.email))
        async with self._database.connection() as connection:
            rows = await store.users(connection, query.limit + 1, query.cursor)
        return page_of([from_row(User, row) for row in rows], query.limit, lambda one: one.id)

    async def find_by_email(self, email: str) -> list[User]:
        """The user with this e-mail address, if there is one."""
        async with self._database.connection() as connection:
            row = await linking_store.user_by_email(connection, email)
        return [] if row is None else [from_row(User, row)]

    async def get_by_email(self, email: str) -> User:
        """The user with this e-mail address. Raises NotFoundError."""
        users = await self.find_by_email(email)
        if not users:
            raise NotFoundError("there is no user with this e-mail address")
        return users[0]

    async def subscriptions(
        self, *, user_id: UUID | None = None, email: str | None = None
    ) -> list[SubscriptionView]:
        """The subscriptions of a user, by id or e-mail address."""
        if (user_id is None) == (email is None):
            raise InvalidRequestError("give either user_id or email")
        async with self._database.snapshot() as connection:
            user = await (
                linking_store.user_by_id(connection, user_id)
                if user_id is not None
                else linking_store.user_by_email(connection, email or "")
            )
            if user is None:
                return []
            rows = await store.subscriptions(connection, user_id=user["id"])
        return [from_row(SubscriptionView, row) for row in rows]

    async def cancel_subscription(
        self, subscription_id: UUID, at: CancelAt, actor: Actor, reason: str
    ) -> SubscriptionDetail:
        """Let a subscription end; it takes no further payment. What was paid stays recorded.

        Raises NotFoundError, or ConflictError if it has ended already.
        """
        ends_now = at is CancelAt.NOW

        async def cancel(connection: Connection, rules: Rules) -> None:
            before = await store.lock_subscription(connection, subscription_id)
            if before["ended_at"] is not None and not ends_now:
                raise ConflictError("the subscription has ended already: resume it first")
            if before["ended_at"] is not None or (before["canceled_at"] and not ends_now):
                return  # a repeat
            await store.QUERIES["cancel_subscription"].run(
                connection, id=subscription_id, ends_now=ends_now
            )
            await record_action(
                connection,
                actor.name,
                "subscription_canceled",
                user_id=before["user_id"],
                reason=reason,
                ends=at,
            )

        await self._linker.run(cancel)
        return await self.subscription(subscription_id)

    async def resume_subscription(
        self, subscription_id: UUID, actor: Actor, reason: str | None = None
    ) -> SubscriptionDetail:
        """Undo a cancellation: its periods are as if there had been none.

        Money that arrived meanwhile is applied. Raises NotFoundError.
        """

        async def resume(connection: Connection, rules: Rules) -> list[PaymentId]:
            before = await store.lock_subscription(connection, subscription_id)
            user_id = before["user_id"]
            if before["canceled_at"] is not None:
                await store.QUERIES["resume_subscription"].run(connection, id=subscription_id)
                await record_action(
                    connection, actor.name, "subscription_resumed", user_id=user_id, reason=reason
                )
            return await store.payments_of_canceled(connection, user_id)

        await self._linker.change_and_apply(resume)
        return await self.subscription(subscription_id)

    async def subscription(self, subscription_id: UUID) -> SubscriptionDetail:
        """A subscription with its periods. Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            rows = await store.subscriptions(connection, id=subscription_id)
            if not rows:
                raise NotFoundError(f"there is no subscription {subscription_id}")
            (found,) = await store.with_periods(connection, rows)
        return found


def _require_address(email: str) -> None:
    if not is_email(email):
        raise InvalidRequestError("email: give exactly one address, without a name and spaces")
