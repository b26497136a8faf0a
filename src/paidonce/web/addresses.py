"""Who is calling: only a trusted proxy's word counts for another address than the socket's."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from paidonce.errors import ConfigurationError

Network = IPv4Network | IPv6Network


class Addresses:
    """Finds the client's address and says whether it may deliver."""

    def __init__(
        self, trusted_proxies: Sequence[str], allowed: Mapping[str, Sequence[str]]
    ) -> None:
        self._trusted = _networks(trusted_proxies, "server.trusted_proxies")
        self._allowed = {
            name: _networks(networks, f"sources.{name}.allow")
            for name, networks in allowed.items()
            if networks
        }

    def client(self, peer: str | None, headers: Mapping[str, str]) -> str | None:
        """The nearest address that is not a trusted proxy's."""
        if peer is None or not self._trusted or not _within(peer, self._trusted):
            return peer
        forwarded = headers.get("x-forwarded-for", "")
        for hop in reversed([part.strip() for part in forwarded.split(",")]):
            if not _is_address(hop):
                break
            peer = hop
            if not _within(hop, self._trusted):
                break
        return peer

    def may_deliver(self, source: str, peer: str | None, headers: Mapping[str, str]) -> bool:
        """Whether the source's allow-list, if it has one, holds the client's address."""
        allowed = self._allowed.get(source)
        if allowed is None:
            return True
        address = self.client(peer, headers)
        return address is not None and _within(address, allowed)


def _networks(texts: Sequence[str], key: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}; write such as 10.0.0.0/8") from None


def _within(address: str, networks: Sequence[Network]) -> bool:
    if not _is_address(address):
        return False
    found = ip_address(address)
    return any(found in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
