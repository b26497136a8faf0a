"""Rate limits, by a clock that a test sets."""

from types import SimpleNamespace

import pytest

from paidonce.guard import limits
from paidonce.guard.limits import Limit
from paidonce.guard.request_guard import Limits
from paidonce.runtime import bounded
from paidonce.runtime.bounded import Bounded
from paidonce.settings.sections import LimitsSettings


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that a test sets."""
    at = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: at.now_s))
    return at


def test_the_quota_can_be_used_up_and_comes_back(clock: SimpleNamespace) -> None:
    """SEC-1"""
    limit = Limit("unverified", "3/minute")
    assert [limit.hit("a").remaining for _ in range(2)] == [2, 1]
    assert limit.exceeded("a") is None
    assert limit.hit("a").remaining == 0
    assert limit.exceeded("a") is not None
    assert limit.exceeded("b") is None
    clock.now_s = 59.9
    assert limit.exceeded("a") is not None
    clock.now_s = 60.0
    assert limit.exceeded("a") is None
    assert limit.hit("a").remaining == 2


def test_the_fields_are_those_of_the_draft(clock: SimpleNamespace) -> None:
    """SEC-1"""
    limit = Limit("unverified", "120/minute")
    untouched = '"unverified";r=120;t=60'
    assert dict(limit.state("a").fields())["ratelimit"] == untouched
    for _ in range(121):
        limit.hit("a")
    clock.now_s = 29.5
    over = limit.exceeded("a")
    assert over is not None
    assert over.fields() == (
        ("ratelimit-policy", '"unverified";q=120;w=60'),
        ("ratelimit", '"unverified";r=0;t=31'),
    )


def test_what_others_have_counted_counts_here(clock: SimpleNamespace) -> None:
    """SEC-1: several machines share their counts."""
    limit = Limit("unverified", "10/minute")
    limit.hit("a")
    limit.learn("a", 10, left_s=20.0)
    over = limit.exceeded("a")
    assert over is not None
    assert over.reset_s == 20
    limit.learn("a", 2, left_s=20.0)
    assert limit.exceeded("a"), "an answer that is late takes nothing back"
    limit.forget("a")
    assert limit.exceeded("a") is None


def test_without_a_limit_for_strangers_there_is_none_for_others() -> None:
    """SEC-1"""
    off = Limits.of(LimitsSettings(unverified=""))
    assert (off.unverified, off.verified_senders) == (None, None)
    usual = Limits.of(LimitsSettings())
    assert [limit.name for limit in usual.of_addresses()] == ["unverified", "verified_senders"]


def test_what_is_remembered_is_bounded() -> None:
    """SEC-8"""
    assert bounded.MAX_ENTRIES == 100_000
    few: Bounded[str, int] = Bounded(2)
    for number, name in enumerate(("a", "b", "a", "c")):
        few.put(name, number)
    assert dict(few) == {"a": 2, "c": 3}
