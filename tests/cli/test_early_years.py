"""Times of a year below 1000: nonsense that a gateway may send, and that must be readable."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest

from paidonce.terminal import output
from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import paidonce

CONFIG: Final = shops.CONFIG
RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
EARLY: Final = "0999-07-08T09:10:11Z"


def test_times_of_an_early_year_have_four_digits_wherever_they_are_printed(shared: Shared) -> None:
    """OPS-7 USE-2: in the API, on the command line and in the log."""
    shop = Shop(shared.service)
    reference, payment = shop.order(), shop.name("p")
    reply = shop.paid(payment, reference, at=EARLY)
    assert reply.http == 200, reply.body
    event_id = reply.json["event_id"]
    folder = shop.service.folder
    printed = [
        shop.service.api("GET", f"/events/{event_id}").body.decode(),
        shop.service.api("GET", f"/orders/{reference}").body.decode(),
        json.dumps(shop.payment(payment)),
        *(
            paidonce(folder, *words).stdout
            for words in (
                ("events", "show", event_id),
                ("events", "show", event_id, "--json"),
                ("payments", "show", payment),
                ("payments", "show", payment, "--json"),
                ("orders", "show", reference),
                ("orders", "list", "--json"),
                ("orders", "list"),
            )
        ),
        json.dumps(shop.service.log_lines(webhook_event_id=event_id)),
    ]
    assert sum("0999-07-08" in text for text in printed) >= 6, printed
    for text in printed:
        assert not re.search(r"(?<!\d)999-07-08", text), text
        for time in re.findall(r"\b\d{1,4}-\d\d-\d\d[T ][^\s\",|\\]*", text):
            assert RFC_3339.fullmatch(time), time


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(999, 7, 8, 9, 10, 11, tzinfo=UTC), "0999-07-08T09:10:11Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=9))), "2025-12-31T15:00:00Z"),
    ],
)
def test_a_time_is_printed_in_utc(time: Any, text: str) -> None:
    """OPS-7"""
    assert output.rfc3339(time) == text
