"""How much of what is authentic but refused is kept."""

import pytest

from paidonce.inbox import evidence
from paidonce.inbox.evidence import StoredOnce


def test_each_one_is_kept_once() -> None:
    """PRV-8 SEC-5"""
    limit = StoredOnce()
    assert [limit.allows(b"a"), limit.allows(b"b"), limit.allows(b"a")] == [True, True, False]


def test_one_that_could_not_be_stored_is_kept_when_it_comes_again() -> None:
    """PRV-8"""
    limit = StoredOnce()
    limit.allows(b"a")
    limit.forget(b"a")
    limit.forget(b"unknown")
    assert limit.allows(b"a")


def test_memory_and_minute_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-8"""
    now_s = 0.0
    monkeypatch.setattr(evidence, "MAX_STORED_ONCE", 5)
    monkeypatch.setattr(evidence, "MAX_REMEMBERED", 2)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    limit = StoredOnce()
    assert [limit.allows(bytes([n])) for n in range(7)] == [True] * 5 + [False] * 2
    now_s = 60.0
    assert not limit.allows(bytes([4])), "one of the last is remembered"
    assert limit.allows(bytes([0])), "the oldest was forgotten"
    assert limit.allows(bytes([6])), "what was too much before may be kept now"
