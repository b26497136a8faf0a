"""Finds the address of the client, and checks allow lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from paidonce.errors import ConfigurationError
from paidonce.guard.host_names import HostNames, is_host_name
from paidonce.guard.sender_addresses import parse_address

Network = IPv4Network | IPv6Network

_MAPPED = "::ffff:"
FORWARDED_FOR = "x-forwarded-for"


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
        if self.is_trusted(address):
            return True
        return any(
            _within(address, one.networks) or self.hosts.have(one.hosts, address)
            for one in self._allowed.values()
        )

    def may_deliver(self, source: str, address: str | None) -> bool:
        """Whether the address may deliver to the source."""
        allowed = self._allowed.get(source)
        if allowed is None:
            return True
        if address is None:
            return False
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
