"""Host names in allow-lists, looked up now and then and never while a request waits (SEC-2)."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, NoReturn

from paidonce.domain.addresses import parsed
from paidonce.telemetry import logger

log = logger(__name__)

PAUSE_S: Final = 300.0
LOOKUP_TIMEOUT_S: Final = 5.0
MAX_ADDRESSES: Final = 256
"""How many addresses of one name count."""

_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.*[a-z])(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE)

Lookup = Callable[[str], Awaitable[Iterable[str]]]


def is_host_name(text: str) -> bool:
    """Whether it is written like a name, and not like an address or a network."""
    return parsed(text) is None and _NAME.fullmatch(text) is not None


async def system_lookup(name: str) -> list[str]:
    """The addresses of a name, as this machine finds them. Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LOOKUP_TIMEOUT_S):
        found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class HostNames:
    """The last answer for each name. A lookup that fails keeps it, if there is one."""

    def __init__(self, names: Collection[str], lookup: Lookup = system_lookup) -> None:
        self._names = sorted(names)
        self._lookup = lookup
        self._addresses: dict[str, frozenset[str]] = {}

    def have(self, names: Iterable[str], address: str) -> bool:
        """Whether the address is one of these names'."""
        return any(address in self._addresses.get(name, ()) for name in names)

    async def run(self) -> NoReturn:
        """Look the names up again and again, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_S)
            await self.look_up()

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
        self._addresses[name] = frozenset(str(parsed(one) or one) for one in found)
