"""A secret is rotated wrongly: people are told, and what was refused is processed afterwards."""

import json
from pathlib import Path
from typing import Any, Final

from tests.support.servers import StartService
from tests.support.service import BASIC, SECRET, Service, paid
from tests.support.tools import paidonce, rows, until

CONFIG: Final = BASIC.replace(f'"{SECRET}", "second-secret"', '"file:secret"') + (
    '[notifications.ops]\nkind = "slack"\nurl = "http://127.0.0.1:9/nobody"\n'
)
SENT: Final = 4


def run(service: Service, *arguments: str) -> Any:
    done = paidonce(service.folder, *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_wrong_secret_is_told_of_and_what_was_refused_is_processed_after_its_repair(
    start_service: StartService, database_url: str, tmp_path: Path
) -> None:
    """SEC-11 OPS-4: once each, and without the forgeries."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET, encoding="utf-8")
    service = start_service(CONFIG.replace("file:secret", f"file:{secret}"))
    service.user("late@example.com")
    assert service.deliver(paid("before", email="late@example.com")).http == 200
    until(lambda: rows(database_url, "SELECT FROM verified_senders"))

    secret.write_text("a-secret-of-another-shop", encoding="utf-8")
    assert run(service, "reload")["changed"] == ["sources.payments.secrets"]
    stranger = service.seen_from("127.0.0.7")
    for number in range(SENT):
        said = paid(f"late-{number}", email="late@example.com")
        assert service.deliver(said).http == 401
        forged = paid(f"forged-{number}", email="late@example.com")
        assert stranger.deliver(forged, secret="of-a-forger").http == 401
    (told,) = until(lambda: service.log_lines(event="signatures_fail"))
    assert (told["source"], told["address"]) == ("payments", "127.0.0.1")
    assert "paidonce events reprocess --refused --source payments" in told["message"]
    metric = "webhook_verified_sender_rejected_total"
    assert service.metric(metric, source="payments") == SENT
    for number in range(SENT):  # it goes on, and nobody is told again
        assert service.deliver(paid(f"late-{number}", email="late@example.com")).http == 401
    found = "SELECT failures FROM failing_sources"
    assert until(lambda: rows(database_url, found)[0]["failures"] == 2 * SENT)
    notified = "SELECT source FROM notifications WHERE kind = 'signatures'"
    assert rows(database_url, notified) == [{"source": "payments"}]
    assert len(service.log_lines(event="signatures_fail")) == 1

    checks = json.loads(paidonce(service.folder, "doctor", "--json").stdout)
    (signatures,) = [one for one in checks if one["name"] == "signatures"]
    assert signatures["state"] == "warning"
    assert "payments since" in signatures["found"]

    secret.write_text(SECRET, encoding="utf-8")
    assert run(service, "reload")["changed"] == ["sources.payments.secrets"]
    chosen = ("events", "reprocess", "--refused", "--source", "payments", "--since", "1h")
    seen = run(service, *chosen, "--dry-run")
    done = run(service, *chosen, "--yes")
    expected = {
        "FAILED_FINAL → PROCESSED": SENT,
        "FAILED_FINAL → duplicate": SENT,
        "FAILED_FINAL → refused": SENT,
    }
    assert done["counts"] == expected
    assert seen["applied"] == done["applied"] == {"number": SENT, "sums": {"RUB": "3960.00"}}
    again = run(service, *chosen, "--yes")
    assert again["applied"]["number"] == 0
    assert again["counts"] == {"FAILED_FINAL → duplicate": 2 * SENT, "FAILED_FINAL → refused": SENT}
    assert len(rows(database_url, "SELECT FROM payments")) == SENT + 1
    forgeries = "SELECT FROM webhook_events WHERE remote_address = '127.0.0.7'"
    assert len(rows(database_url, f"{forgeries} AND error_code = 'INVALID_SIGNATURE'")) == SENT

    assert service.deliver(paid("after", email="late@example.com")).http == 200
    assert until(lambda: rows(database_url, found)[0]["failures"] == 0)
