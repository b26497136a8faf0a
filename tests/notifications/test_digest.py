"""The texts of messages."""

from datetime import UTC, datetime

import pytest

from paidonce.core.notifications import NotificationKind
from paidonce.notifications.digest import compose, render_text
from paidonce.notifications.model import PendingNotification

AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.mark.parametrize("kind", NotificationKind)
def test_every_kind_has_a_name(kind: NotificationKind) -> None:
    """OBS-5"""
    content = compose([_told(kind), _told(kind)])
    assert content["subject"].startswith("Paidonce: 2 ")
    assert "2 " in render_text(content, 1_000)


def test_groups_of_one_size_are_in_the_order_of_their_sources() -> None:
    """OBS-5: also with one that has no source, such as a payment of a source that was removed."""
    kind = NotificationKind.MISMATCH
    content = compose([_told(kind, "b"), _told(kind), _told(kind, "a")])
    assert [group["source"] for group in content["groups"]] == [None, "a", "b"]


def _told(kind: NotificationKind, source: str = "") -> PendingNotification:
    return PendingNotification(
        kind=kind, source=source, event_id=None, payment_id=None, details={}, at=AT, suppressed=0
    )
