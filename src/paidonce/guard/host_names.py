"""Host names in allow lists, resolved in the background (SEC-2)."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from paidonce.guard.sender_addresses import parse_address
from paidonce.runtime.service import Service
from paidonce.telemetry import logger

log = logger(__name__)

PAUSE_S: Final = 300.0
LOOKUP_TIMEOUT_S: Final = 5.0
MAX_ADDRESSES: Final = 256
"""At most this many addresses of one name are used."""

_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.*[a-z])(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE)

Lookup = Callable[[str], Awaitable[Iterable[str]]]


def is_host_name(text: str) -> bool:
    """Whether the text is a host name, not an address or a network."""
    return parse_address(text) is None and _NAME.fullmatch(text) is not None


async def system_lookup(name: str) -> list[str]:
    """The addresses of a name. Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LOOKUP_TIMEOUT_S):
        found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class HostNames(Service):
    """The last answer for each name. A lookup that fails keeps it, if there is one."""

    def __init__(self, names: Collection[str], lookup: Lookup = system_lookup) -> None:
        super().__init__("host names")
        self._names = sorted(names)
        self._lookup = lookup
        self._addresses: dict[str, frozenset[str]] = {}

    def have(self, names: Iterable[str], address: str) -> bool:
        """Whether the address belongs to one of these names."""
        return any(address in self._addresses.get(name, ()) for name in names)

    async def run(self) -> None:
        """Look all names up periodically, until asked to finish."""
        await self.pause(PAUSE_S)
        while not self.is_finishing:
            await self.look_up()
            await self.pause(PAUSE_S)

    async def look_up(self) -> None:
        """Look every name up once. What fails is logged, and the last answer stays."""
        await asyncio.gather(*(self._look_up(name) for name in self._names))

    async def _look_up(self, name: str) -> None:
        try:
            found = list(await self._lookup(name))[:MAX_ADDRESSES]
        except (OSError, TimeoutError, UnicodeError) as error:
            is_refused = name not in self._addresses
            log.warning(
                "host_not_found",
                host=name,
                error=type(error).__name__,
                detail="refused until it is found" if is_refused else "the last answer counts",
            )
            return
        self._addresses[name] = frozenset(str(parse_address(one) or one) for one in found)
