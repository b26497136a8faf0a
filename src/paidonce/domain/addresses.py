"""Addresses of senders: how they are written, and what is counted as one sender."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

MAX_REMEMBERED: Final = 100_000
"""How many addresses are known without reading them again."""
MAX_UNIT: Final = 100
PREFIX_BITS: Final = 64
"""Whoever has an IPv6 address has all of its /64."""


_NAT64: Final = IPv6Network("64:ff9b::/96")
"""Where IPv4 clients of networks that have only IPv6 seem to come from."""


@lru_cache(maxsize=MAX_REMEMBERED)
def unit_of(address: str) -> str:
    """What limits and bans count as one sender: an IPv4 address, or the /64 of an IPv6 address.

    What is no address, such as the name of a socket, is itself.
    """
    found = parsed(address)
    if not isinstance(found, IPv6Address):
        return address[:MAX_UNIT] if found is None else str(found)
    host_bits = 128 - PREFIX_BITS
    return str(IPv6Network((int(found) >> host_bits << host_bits, PREFIX_BITS)))


def unit_named(text: str) -> str:
    """The sender that a person names by an address, or by a unit as it is listed."""
    if "/" not in text:
        return unit_of(text)
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return text
    return unit_of(str(network.network_address))


def parsed(text: str) -> IPv4Address | IPv6Address | None:
    """The address, as IPv4 if it is that in the clothes of IPv6; None if it is none."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found in _NAT64:
            return IPv4Address(int(found) & 0xFFFFFFFF)
        return found.ipv4_mapped or IPv6Address(int(found))  # without the zone of a link
    return found
