"""Bans: who is refused at the door."""

from paidonce.domain.addresses import unit_named
from paidonce.errors import NotFoundError
from paidonce.operations.desk import Actor, Desk, Found, first_of
from paidonce.store import bans, listings
from paidonce.views import BanView


class BanVerbs(Desk):
    """What can be asked of bans, and done about them."""

    async def bans(self, *, limit: int, cursor: str | None = None) -> Found[BanView]:
        """A page of the addresses that are banned now, in their order."""
        async with self._database.connection() as connection:
            rows = await bans.list_bans(connection, cursor, limit + 1)
        return first_of([BanView(**dict(row)) for row in rows], limit, lambda ban: ban.address)

    async def lift_ban(self, address: str, actor: Actor) -> None:
        """Let an address in again, and hold nothing against it; every process does so in seconds.

        Raises NotFoundError when it is not banned.
        """
        unit = unit_named(address)
        async with self._database.transaction() as connection:
            if not await bans.lift(connection, unit):
                raise NotFoundError("this address is not banned")
            await listings.record_action(connection, actor.name, "ban_lifted", address=unit)

    async def number_of_bans(self) -> int:
        """How many addresses are banned now."""
        async with self._database.connection() as connection:
            return await bans.count_bans(connection)
