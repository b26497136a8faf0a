"""Addresses of senders: what counts as one sender, and which may deliver (SEC-2)."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.runtime.service import Service
from paidonce.telemetry import logger

log = logger(__name__)

MAX_REMEMBERED: Final = 100_000
"""How many parsed addresses are cached."""
MAX_UNIT: Final = 100
PREFIX_BITS: Final = 64
"""A host with an IPv6 address usually controls its whole /64."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""The prefix of IPv4 clients behind NAT64."""
PAUSE_S: Final = 300.0
LOOKUP_TIMEOUT_S: Final = 5.0
MAX_ADDRESSES: Final = 256
"""At most this many addresses of one name are used."""
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.*[a-z])(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE)
_MAPPED = "::ffff:"
FORWARDED_FOR = "x-forwarded-for"

Network = IPv4Network | IPv6Network
Lookup = Callable[[str], Awaitable[Iterable[str]]]


def named_headers(lines: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. All lines of `X-Forwarded-For` are joined: a proxy may add its own."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
    if len(headers) < len(lines) and FORWARDED_FOR in headers:
        name = FORWARDED_FOR.encode()
        hops = [value.decode("latin-1") for one, value in lines if one == name]
        headers[FORWARDED_FOR] = ", ".join(hops)
    return headers


@dataclass(frozen=True, slots=True)
class AllowList:
    """The addresses that may deliver to a source."""

    networks: tuple[Network, ...]
    hosts: tuple[str, ...]


class Addresses:
    """Finds the client's address and checks whether it may deliver."""

    def __init__(
        self, trusted_proxies: Sequence[str], allowed: Mapping[str, Sequence[str]]
    ) -> None:
        self._trusted = _networks(trusted_proxies, "server.trusted_proxies")
        self._allowed = {
            name: _allowed(entries, f"sources.{name}.allow")
            for name, entries in allowed.items()
            if entries
        }
        self.hosts = HostNames({host for one in self._allowed.values() for host in one.hosts})

    def client(self, peer: str | None, headers: Mapping[str, str]) -> str | None:
        """The nearest address that is not a trusted proxy's."""
        if peer is not None and peer.startswith(_MAPPED):
            peer = _plain(peer)
        if peer is None or not self._trusted or not _within(peer, self._trusted):
            return peer
        forwarded = headers.get(FORWARDED_FOR, "")
        for hop in reversed([part.strip() for part in forwarded.split(",")]):
            if parse_address(hop) is None:
                break
            peer = _plain(hop)
            if not _within(hop, self._trusted):
                break
        return peer

    def is_trusted(self, address: str) -> bool:
        """Whether it is a trusted proxy."""
        return bool(self._trusted) and _within(address, self._trusted)

    def is_named(self, address: str) -> bool:
        """Whether it is a trusted proxy, or in the allow list of a source."""
        return self.is_trusted(address) or any(
            self.may_deliver(source, address) for source in self._allowed
        )

    def may_deliver(self, source: str, address: str | None) -> bool:
        """Whether the address may deliver to the source."""
        allowed = self._allowed.get(source)
        if allowed is None or address is None:
            return allowed is None
        return _within(address, allowed.networks) or self.hosts.have(allowed.hosts, address)


def _allowed(entries: Sequence[str], key: str) -> AllowList:
    hosts = tuple(entry for entry in entries if is_host_name(entry))
    networks = [entry for entry in entries if entry not in hosts]
    return AllowList(_networks(networks, key), hosts)


def _networks(texts: Sequence[str], key: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}; write such as 10.0.0.0/8") from None


def _within(address: str, networks: Sequence[Network]) -> bool:
    found = parse_address(address)
    return found is not None and any(found in network for network in networks)


def _plain(address: str) -> str:
    found = parse_address(address)
    return address if found is None else str(found)


@lru_cache(maxsize=MAX_REMEMBERED)
def sender_unit(address: str) -> str:
    """The sender for limits and bans: an IPv4 address, or the /64 of an IPv6 address.

    A text that is no address, such as the name of a socket, is returned as it is.
    """
    found = parse_address(address)
    if not isinstance(found, IPv6Address):
        return address[:MAX_UNIT] if found is None else str(found)
    host_bits = 128 - PREFIX_BITS
    return str(IPv6Network((int(found) >> host_bits << host_bits, PREFIX_BITS)))


def parse_sender_unit(text: str) -> str:
    """The sender that an operator names, by an address or by a unit as listed."""
    if "/" not in text:
        return sender_unit(text)
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return text
    return sender_unit(str(network.network_address))


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; None if it is none. IPv4-mapped and NAT64 addresses become IPv4."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found in _NAT64:
            return IPv4Address(int(found) & 0xFFFFFFFF)
        return found.ipv4_mapped or IPv6Address(int(found))  # without a zone
    return found


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
