"""The texts of messages."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import pytest

from paidonce.core.notifications import NotificationKind
from paidonce.notifications import digest
from paidonce.notifications.channels import as_code
from paidonce.notifications.digest import compose, render_text
from paidonce.notifications.mail import without_links
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


HOSTILE: Final = (
    "\x1b[31m\u202e\u2028\r\nBcc: x@evil.example\n- 2026, forged `<!channel> *b* "
    "[t](https://evil.example) <https://evil.example|here> www.evil.example <a href='//e'>"
)


def test_what_senders_write_is_one_line_without_markup_or_links() -> None:
    """SEC-9 OBS-5: in Slack and its kind, and in mail readers."""
    details = dict.fromkeys(("payment", "order", "message", "code"), HOSTILE)
    content = compose([_told(NotificationKind.MISMATCH, "shop", details)])
    in_mail = render_text(content, 10_000, without_links)
    (line,) = [one for one in in_mail.splitlines() if "evil" in one]
    assert line.isprintable()
    assert "://" not in line
    assert "www." not in line
    (line,) = [one for one in render_text(content, 10_000, as_code).splitlines() if "evil" in one]
    assert line.count("`") == 2
    assert line.startswith("- `")
    assert line.endswith("`")


def test_links_stand_outside_of_what_senders_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """OBS-5: so that they work; without the address of the service there are none."""
    monkeypatch.setattr(digest, "PAGES", {"payment": "/pages/{id}"})
    told = replace(_told(NotificationKind.MISMATCH), payment_id=UUID(int=7))
    linked = render_text(compose([told], "https://pay.example.com/"), 1_000, as_code)
    assert f", https://pay.example.com/pages/{UUID(int=7)}" in linked
    assert f", paidonce payments show {UUID(int=7)}" in render_text(compose([told]), 1_000)


def _told(
    kind: str, source: str = "", details: Mapping[str, str] | None = None
) -> PendingNotification:
    return PendingNotification(
        kind=kind,
        source=source,
        event_id=None,
        payment_id=None,
        details=details or {},
        at=AT,
        suppressed=0,
    )
