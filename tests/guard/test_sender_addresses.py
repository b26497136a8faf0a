"""Who is calling, and what is counted as one sender."""

from collections.abc import Mapping, Sequence

import pytest

from paidonce.errors import ConfigurationError
from paidonce.guard.addresses import (
    Addresses,
    HostNames,
    is_host_name,
    named_headers,
    parse_sender_unit,
    sender_unit,
)


@pytest.mark.parametrize(
    ("address", "unit"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:DB8:0:1::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("64:ff9b::c000:201", "192.0.2.1"),
        ("testclient", "testclient"),
        ("long" * 100, "long" * 25),
        ("", ""),
    ],
)
def test_an_ipv6_address_is_counted_by_its_network(address: str, unit: str) -> None:
    """SEC-1 SEC-4: whoever has one address of a /64 has all of them."""
    assert sender_unit(address) == unit


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1/32", "192.0.2.1"),
        ("2001:db8::77", "2001:db8::/64"),
        ("2001:DB8::/64", "2001:db8::/64"),
        ("no/address", "no/address"),
    ],
)
def test_a_sender_can_be_named_by_any_of_its_addresses(text: str, unit: str) -> None:
    """OPS-5"""
    assert parse_sender_unit(text) == unit


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "198.51.100.9, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("10.0.0.1", "::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("203.0.113.5", "192.0.2.7", "203.0.113.5"),
        ("::ffff:203.0.113.5", "", "203.0.113.5"),
        (None, "192.0.2.7", None),
    ],
)
def test_only_a_trusted_proxy_can_name_another_address(
    peer: str | None, forwarded: str, client: str | None
) -> None:
    """SEC-1"""
    addresses = Addresses(["10.0.0.0/8"], {})
    assert addresses.client(peer, {"x-forwarded-for": forwarded}) == client


@pytest.mark.parametrize("text", ["10.0.0.0/99", "300.1.1.1", "a b", "-a.example", "", "a/b"])
def test_a_text_that_is_neither_network_nor_host_name_is_an_error(text: str) -> None:
    """SEC-2 USE-3"""
    with pytest.raises(ConfigurationError, match=r"sources\.shop\.allow"):
        Addresses([], {"shop": [text]})


@pytest.mark.parametrize(
    "text", ["gateway", "hooks.example.com", "hooks.example.com.", "3com.example"]
)
def test_a_text_that_is_no_network_is_a_host_name(text: str) -> None:
    """SEC-2"""
    assert is_host_name(text)


class Phonebook:
    """Answers as a test says, and fails where it says nothing."""

    def __init__(self, numbers: Mapping[str, Sequence[str]]) -> None:
        self.numbers = numbers

    async def __call__(self, name: str) -> Sequence[str]:
        if name not in self.numbers:
            raise OSError("no answer")
        return self.numbers[name]


async def test_a_lookup_that_fails_keeps_the_last_answer_and_the_first_that_fails_refuses() -> None:
    """SEC-2"""
    book = Phonebook({"a.example": ["192.0.2.1", "::ffff:192.0.2.2"]})
    hosts = HostNames(["a.example", "b.example"], book)
    assert not hosts.have(["a.example"], "192.0.2.1")
    await hosts.look_up()
    assert hosts.have(["a.example"], "192.0.2.1")
    assert hosts.have(["b.example", "a.example"], "192.0.2.2")
    assert not hosts.have(["b.example"], "192.0.2.1")
    book.numbers = {"b.example": ["192.0.2.9"]}
    await hosts.look_up()
    assert hosts.have(["a.example"], "192.0.2.1")
    assert hosts.have(["b.example"], "192.0.2.9")
    book.numbers = {"a.example": ["192.0.2.3"]}
    await hosts.look_up()
    assert not hosts.have(["a.example"], "192.0.2.1")
    assert hosts.have(["a.example"], "192.0.2.3")


def test_all_lines_of_a_header_that_names_hops_count() -> None:
    """SEC-1: a proxy may add a line of its own, behind one that the client made up."""
    lines = [
        (b"x-forwarded-for", b"192.0.2.66"),
        (b"host", b"h"),
        (b"x-forwarded-for", b"192.0.2.1"),
    ]
    headers = named_headers(lines)
    assert headers == {"x-forwarded-for": "192.0.2.66, 192.0.2.1", "host": "h"}
    assert Addresses(["10.0.0.0/8"], {}).client("10.0.0.1", headers) == "192.0.2.1"
