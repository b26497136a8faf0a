"""The retry schedule."""

import random
from datetime import timedelta

import pytest

from paidonce.core.events import Code
from paidonce.core.retry import SLOW_RETRY_CODES, RetryPolicy

JITTER = 1.2
MANY = 1_000


def delays_s(policy: RetryPolicy, code: Code) -> list[float]:
    """All delays of an event that fails at every attempt."""
    found: list[float] = []
    while policy.should_retry(code, len(found) + 1, timedelta(seconds=sum(found))):
        assert len(found) < MANY, "it is retried for ever"
        found.append(policy.delay(code, len(found) + 1, random.random()).total_seconds())
    return found


def test_a_transient_failure_is_retried_after_1_2_4_and_8_seconds() -> None:
    """RET-1: five attempts, the first at once."""
    found = delays_s(RetryPolicy(), Code.INTERNAL)
    assert len(found) == 4
    for delay_s, expected_s in zip(found, (1, 2, 4, 8), strict=True):
        assert expected_s <= delay_s <= expected_s * JITTER


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
def test_the_number_of_attempts_is_a_setting(attempts: int) -> None:
    """RET-1"""
    assert len(delays_s(RetryPolicy(attempts=attempts), Code.INTERNAL)) == attempts - 1


def test_the_age_of_a_transient_failure_does_not_matter() -> None:
    """RET-1: an event that is first tried a week late has all of its attempts."""
    week = timedelta(days=7)
    assert RetryPolicy().should_retry(Code.INTERNAL, 4, week)
    assert not RetryPolicy().should_retry(Code.INTERNAL, 5, timedelta())


def test_no_delay_exceeds_max_s() -> None:
    """RET-1"""
    policy = RetryPolicy(attempts=100, initial_s=3, factor=100, max_s=60)
    found = delays_s(policy, Code.INTERNAL)
    assert len(found) == 99
    assert 3 <= found[0] <= 3 * JITTER
    assert all(60 <= delay_s <= 60 * JITTER for delay_s in found[1:])


@pytest.mark.parametrize("code", sorted(SLOW_RETRY_CODES))
def test_the_slow_schedule_lasts_at_least_72_hours(code: Code) -> None:
    """RET-1: whatever the number of attempts of the quick schedule."""
    found = delays_s(RetryPolicy(attempts=1), code)
    assert sum(found) >= 72 * 3600, "the last attempt comes too early"
    assert sum(found) <= 14 * 24 * 3600
    assert found[0] >= 30, "the slow schedule must be slow"
    assert len(found) < 50


@pytest.mark.parametrize("code", sorted(SLOW_RETRY_CODES))
def test_redeliveries_do_not_shorten_the_slow_schedule(code: Code) -> None:
    """RET-1: each of them is an attempt, and a gateway may send a hundred in an hour."""
    policy = RetryPolicy()
    assert policy.should_retry(code, 100, timedelta(hours=71))
    assert policy.delay(code, 100, 0.0) > timedelta()


def test_missing_users_use_the_slow_schedule() -> None:
    """RET-1 PAY-5"""
    assert {Code.USER_MISSING, Code.UNLINKED_PAYMENT} <= SLOW_RETRY_CODES
    assert Code.INTERNAL not in SLOW_RETRY_CODES


def test_jitter_spreads_retries() -> None:
    """RET-1"""
    delays = {RetryPolicy().delay(Code.INTERNAL, 3, random.random()) for _ in range(50)}
    assert len(delays) > 40
    assert all(timedelta(seconds=4) <= delay <= timedelta(seconds=4.8) for delay in delays)


@pytest.mark.parametrize("code", sorted(SLOW_RETRY_CODES))
def test_an_event_first_tried_a_week_late_is_tried_more_than_once(code: Code) -> None:
    """RET-1: it may have waited for us, and not for others."""
    week = timedelta(days=7)
    assert RetryPolicy().should_retry(code, 1, week)
    assert not RetryPolicy().should_retry(code, 50, week)
