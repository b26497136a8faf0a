"""JSON for programs, short lines for people; and what is a warning."""

import json
import os
import pty
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from select import PIPE_BUF
from typing import Any, Final

import pytest

from paidonce.core.events import Code
from paidonce.telemetry import is_warning
from paidonce.telemetry.log_format import MAX_VALUE, console_line, json_line
from tests.support import fork_server
from tests.support.servers import StartService
from tests.support.service import BASIC, KEY, Service, paid, ready_port
from tests.support.tools import until

HOSTILE: Final = "\x1b[2J\x9b31m\x7f\u202e\u2066\u2028\r\n[red]\U000e0041"
LINE: Final[dict[str, Any]] = {
    "timestamp": datetime(2026, 11, 18, 12, 0, 1, 234_567, UTC),
    "level": "warning",
    "event": "webhook_outcome",
    "result": "conflict",
    "source": "payments",
    "event_type": "paid",
    "external_payment_id": "pay-7",
    "webhook_event_id": "0192",
    "order": "order-1",
    "amount": "1.00",
    "currency": "RUB",
    "error_code": "PAYLOAD_CONFLICT",
    "error_message": "contradicts event 1",
    "reason": None,
    "late_webhook": False,
    "test": False,
    "duration_ms": 3.14159,
}
OF_S0: Final = {
    "request_id", "provider", "source", "webhook_event_id", "external_event_id",
    "external_payment_id", "event_key", "signature_valid", "incoming_status", "amount", "currency",
    "user_id", "result", "payment_status_before", "payment_status_after", "subscription_end_before",
    "subscription_end_after", "subscription_applied_before", "subscription_applied_after",
    "event_age_ms", "late_webhook", "error_code", "error_message", "duration_ms",
}  # fmt: skip


def test_people_get_one_short_line_for_a_delivery() -> None:
    """OBS-1"""
    assert console_line(LINE, is_coloured=False).decode() == (
        "12:00:01.234Z warning conflict          payments  paid  pay-7  1.00 RUB  order order-1"
        "  PAYLOAD_CONFLICT  contradicts event 1  event 0192  3.1 ms\n"
    )


@pytest.mark.parametrize("name", ["external_payment_id", "order", "event_type", "amount"])
def test_no_field_can_break_the_line_or_move_the_cursor(name: str) -> None:
    """SEC-9 OBS-1"""
    shown = console_line({**LINE, name: HOSTILE + "x" * 5_000}, is_coloured=False).decode()
    assert shown.endswith("\n")
    assert shown[:-1].isprintable()
    assert r"\x1b[2J\x9b31m\x7f\u202e\u2066\u2028\r\n[red]\U000e0041" in shown
    assert len(shown) < MAX_VALUE + 400
    text = json_line({**LINE, name: HOSTILE})
    assert text.endswith(b"\n")
    assert text[:-1].decode().isprintable()
    assert json.loads(text)[name] == HOSTILE


def test_a_line_that_several_processes_write_is_short_enough_to_be_atomic() -> None:
    """OBS-1 SEC-9: whatever senders write, lines do not mix. A usual line is whole."""
    names = ("external_payment_id", "external_event_id", "event_key", "order", "error_message")
    line = LINE | dict.fromkeys(names, "\U0001f600\u202e" * 250)
    assert len(json_line(line)) > PIPE_BUF
    text = json_line(line, PIPE_BUF)
    assert len(text) <= PIPE_BUF
    assert json.loads(text).keys() == line.keys()
    assert json_line(LINE, PIPE_BUF) == json_line(LINE)


def test_a_value_with_spaces_is_in_quotes() -> None:
    """SEC-9: so that it does not look like other fields."""
    shown = console_line({**LINE, "external_payment_id": "x  PAID  9.00 EUR"}, is_coloured=False)
    assert b"  'x  PAID  9.00 EUR'  " in shown


@pytest.mark.parametrize(
    ("result", "code", "expected"),
    [
        ("conflict", Code.PAYLOAD_CONFLICT, True),
        ("dead_letter", Code.USER_MISSING, True),
        ("failed_final", Code.AMOUNT_MISMATCH, True),
        ("failed_final", Code.CURRENCY_MISMATCH, True),
        ("failed_final", Code.INVALID_SIGNATURE, False),
        ("unlinked", Code.USER_MISSING, False),
        ("processed", None, False),
    ],
)
def test_mismatches_and_conflicts_are_warnings(
    result: str, code: Code | None, expected: bool
) -> None:
    """OBS-1"""
    line: Any = LINE | {"result": result, "error_code": code}
    assert is_warning(line) is expected


def test_a_terminal_gets_lines_for_people(database_url: str, tmp_path: Path) -> None:
    """OBS-1: log.format = "auto" """
    reading, terminal = pty.openpty()
    text = b""

    def read() -> None:
        nonlocal text
        while True:
            try:
                text += os.read(reading, 65_536)
            except OSError:  # the other side is closed
                return

    threading.Thread(target=read, daemon=True).start()
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}\n[database]\nurl = "{database_url}"\n')
    variables = {**os.environ, "PAIDONCE_BOOTSTRAP_KEY": KEY, "NO_COLOR": "1"}
    with (tmp_path / "stderr").open("wb") as errors:
        process = fork_server.start(
            ("serve", "--port", "0"), tmp_path, variables, terminal, errors.fileno()
        )
    os.close(terminal)
    service = Service(tmp_path, process, ready_port(tmp_path, process))
    service.deliver(paid("for-people", email=None, order="\x1b[31mred"))
    assert until(lambda: b"for-people" in text)
    (line,) = [one for one in text.decode().splitlines() if "for-people" in one]
    assert re.match(
        r"\d\d:\d\d:\d\d\.\d{3}Z info    unlinked          payments  paid  for-people  990.00 RUB"
        r".*  UNLINKED_PAYMENT  ",
        line,
    )
    assert line.isprintable()
    assert service.end() == 0


def test_the_level_chooses_lines_and_json_has_every_field(start_service: StartService) -> None:
    """OBS-1: S0's fields, in JSON because no terminal reads."""
    service = start_service(PAIDONCE_LOG__LEVEL="warning", PAIDONCE_LOG__FORMAT="auto")
    service.deliver(paid("quiet", email=None))
    service.deliver(paid("quiet", email=None, amount="1.00"))
    (line,) = service.log_lines(external_payment_id="quiet")
    assert (line["level"], line["result"]) == ("warning", "conflict")
    assert line.keys() >= OF_S0
    assert not service.log_lines(level="info")
    service.end()
    chatty = start_service(PAIDONCE_LOG__FORMAT="console")
    chatty.deliver(paid("chatty", email=None))
    chatty.end()
    shown = (chatty.folder / "stdout").read_text()
    assert "unlinked          payments  paid  chatty  " in shown
    assert shown.replace("\n", "").isprintable(), "colours are for terminals"
