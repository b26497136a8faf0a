"""How much of what is forged is kept."""

from types import SimpleNamespace

import pytest

from paidonce.inbox import evidence
from paidonce.inbox.evidence import (
    MAX_BYTES,
    MAX_BYTES_PER_ADDRESS,
    MAX_EVIDENCE,
    MAX_EVIDENCE_PER_ADDRESS,
    EvidenceLimit,
)
from paidonce.telemetry.metrics import Dropped


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that a test sets."""
    at = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(evidence, "time", SimpleNamespace(monotonic=lambda: at.now_s))
    return at


def allowed(limit: EvidenceLimit, *addresses: str) -> int:
    return sum(limit.excess(address, 1) is None for address in addresses)


def test_an_address_has_its_own_limit_each_minute(clock: SimpleNamespace) -> None:
    """SEC-5"""
    limit = EvidenceLimit()
    assert allowed(limit, *["192.0.2.1"] * 1_000) == MAX_EVIDENCE_PER_ADDRESS
    assert limit.excess("192.0.2.2", 1) is None
    clock.now_s = 59.9
    assert limit.excess("192.0.2.1", 1) is Dropped.ADDRESS
    clock.now_s = 60.0
    assert limit.excess("192.0.2.1", 1) is None


def test_all_addresses_together_have_a_limit_too(clock: SimpleNamespace) -> None:
    """SEC-5: a flood may come from everywhere."""
    limit = EvidenceLimit()
    everybody = [f"2001:db8::{number:x}" for number in range(2 * MAX_EVIDENCE)]
    assert allowed(limit, *everybody) == MAX_EVIDENCE
    clock.now_s = 60.0
    assert allowed(limit, *everybody) == MAX_EVIDENCE


def test_large_bodies_are_bounded_by_their_size(clock: SimpleNamespace) -> None:
    """SEC-5: a few large ones fill a disk as well as many small ones."""
    limit, size = EvidenceLimit(), 256 * 1024
    kept = sum(limit.excess("192.0.2.1", size) is None for _ in range(60))
    assert kept * size == MAX_BYTES_PER_ADDRESS
    others = sum(limit.excess(f"198.51.100.{number}", size) is None for number in range(200))
    assert (kept + others) * size == MAX_BYTES
