"""IP addresses of senders, and what counts as one sender."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

MAX_REMEMBERED: Final = 100_000
"""How many parsed addresses are cached."""
MAX_UNIT: Final = 100
PREFIX_BITS: Final = 64
"""A host with an IPv6 address usually controls its whole /64."""


_NAT64: Final = IPv6Network("64:ff9b::/96")
"""The prefix of IPv4 clients behind NAT64."""


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
