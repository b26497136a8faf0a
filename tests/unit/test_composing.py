"""What people are told, in words."""

from datetime import UTC, datetime

import pytest

from paidonce.domain.notices import NoticeKind
from paidonce.engine.composing import composed, text_of
from paidonce.store.notices import Told

AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.mark.parametrize("kind", NoticeKind)
def test_there_are_words_for_every_kind(kind: NoticeKind) -> None:
    """OBS-5"""
    content = composed([_told(kind), _told(kind)])
    assert content["subject"].startswith("Paidonce: 2 ")
    assert "2 " in text_of(content, 1_000)


def _told(kind: NoticeKind) -> Told:
    return Told(kind=kind, source="", event_id=None, payment_id=None, details={}, at=AT, more=0)
