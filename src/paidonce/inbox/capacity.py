"""What all connections of a process may use together: their number, and memory for bodies.

When there is no room, the connection goes that has kept the process waiting longest, or that holds
the largest unfinished body. An honest sender is never either of them for long.
"""

from typing import Final, Protocol

from paidonce.api.problems import RETRY_AFTER_S, Problem

OVERLOADED: Final = Problem(
    503, "OVERLOADED", "The server has too many connections; try again.", RETRY_AFTER_S
)


class Tenant(Protocol):
    """A connection."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its client, with nothing to answer."""
        ...

    @property
    def unfinished_bytes(self) -> int:
        """How much it holds of a body that has not ended, and of requests sent ahead."""
        ...

    def give_way(self) -> None:
        """Close, and say why if a request has begun."""
        ...


class Capacity:
    """Counts the connections and the bodies that they hold until they are answered."""

    def __init__(self, max_connections: int, max_body_bytes: int) -> None:
        self._max_connections = max_connections
        self._max_body_bytes = max_body_bytes
        self._tenants: dict[Tenant, None] = {}  # who was answered last comes last
        self._body_bytes = 0

    def enter(self, tenant: Tenant) -> bool:
        """Admit a connection; False if there is no room, and all others are being answered."""
        if len(self._tenants) >= self._max_connections:
            longest = next((one for one in self._tenants if one.is_waiting), None)
            if longest is None:
                return False
            self.leave(longest)
            longest.give_way()
        self._tenants[tenant] = None
        return True

    def leave(self, tenant: Tenant) -> None:
        """The connection has ended."""
        self._tenants.pop(tenant, None)

    def answered(self, tenant: Tenant) -> None:
        """The connection begins to wait for its client again."""
        if self._tenants.pop(tenant, self) is None:
            self._tenants[tenant] = None

    def hold(self, tenant: Tenant, number: int) -> bool:
        """Count bytes of a body; False if there is no room for them."""
        self._body_bytes += number
        if self._body_bytes <= self._max_body_bytes:
            return True
        largest = max(self._tenants, key=_unfinished_bytes, default=tenant)
        if largest is not tenant and largest.unfinished_bytes > tenant.unfinished_bytes:
            largest.give_way()
        return self._body_bytes <= self._max_body_bytes

    def release(self, number: int) -> None:
        """Bytes of a body are gone."""
        self._body_bytes -= number


def _unfinished_bytes(tenant: Tenant) -> int:
    return tenant.unfinished_bytes
