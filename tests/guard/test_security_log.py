"""What the log says of attempts against the door."""

from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from paidonce.guard import security_log
from paidonce.guard.security_log import MAX_LINES, SecurityLog


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that a test sets."""
    at = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(security_log, "time", SimpleNamespace(monotonic=lambda: at.now_s))
    return at


def told(lines: list[Any]) -> list[tuple[str, str | None, int | None]]:
    assert all(line["event"] == "security" for line in lines)
    return [(line["action"], line.get("address"), line.get("repeated")) for line in lines]


def test_the_first_of_each_is_told_and_the_others_are_counted(clock: SimpleNamespace) -> None:
    """SEC-1 SEC-7: a flood is two lines a minute."""
    log = SecurityLog()
    with structlog.testing.capture_logs() as lines:
        for _ in range(1_000):
            log.note("rate_limited", "192.0.2.1", "payments", "r-1")
        log.note("rate_limited", "192.0.2.2", "payments", "r-2")
        clock.now_s = 60.0
        log.note("signature_rejected", "192.0.2.1", "payments", "r-3")
    assert told(lines) == [
        ("rate_limited", "192.0.2.1", None),
        ("rate_limited", "192.0.2.2", None),
        ("rate_limited", "192.0.2.1", 999),
        ("signature_rejected", "192.0.2.1", None),
    ]
    assert lines[0]["source"] == "payments"
    assert lines[0]["request_id"] == "r-1"


def test_a_flood_from_everywhere_is_bounded_too(clock: SimpleNamespace) -> None:
    """SEC-8"""
    log = SecurityLog()
    with structlog.testing.capture_logs() as lines:
        for number in range(10 * MAX_LINES):
            log.note("signature_rejected", f"2001:db8:{number:x}::/64")
        log.flush_if_due()
        assert len(lines) == MAX_LINES
        clock.now_s = 60.0
        log.flush_if_due()
    assert told(lines)[-1] == ("others", None, 9 * MAX_LINES)
    assert len(lines) == MAX_LINES + 1
