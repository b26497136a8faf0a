"""Commands that only look need no secrets and no handlers; those that act say what is missing."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.service import Service, paid, started_service
from tests.support.tools import paidonce

HIDDEN: Final = "a-secret-that-this-shell-lacks"
BROKEN: Final = """
environment = "production"
handlers = ["there_is_no_such_module"]
[sources.payments]
provider = "tilda"
secrets = ["env:SECRET_OF_NOBODY", "file:/there/is/no/such/file"]
[payouts]
gateway_url = "https://gateway.example"
gateway_key = "env:KEY_OF_NOBODY"
source = "payments"
[notifications.ops]
kind = "slack"
url = "env:URL_OF_NOBODY"
"""
LOOKING: Final = (
    "payments list", "events list", "orders list", "users list", "replay list",
    "subscriptions list --email seen@example.com", "wallet list --owner nobody",
    "dead-letters list", "bus status", "bus dead-letters list", "bans list", "keys list", "stats",
    "audit", "wallet verify", "wallet-payments list", "wallet-payments callbacks",
)  # fmt: skip


@pytest.fixture(scope="module")
def shell(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose configuration names secrets and handlers that are not there."""
    folder = tmp_path_factory.mktemp("service")
    service: Service = started_service(folder, shared_database)
    service.user("seen@example.com")
    assert service.deliver(paid("seen", email="seen@example.com")).http == 200
    service.end()
    broken = tmp_path_factory.mktemp("broken")
    text = f'{BROKEN}\n[database]\nurl = "{shared_database}"\n'
    (broken / "paidonce.toml").write_text(text, encoding="utf-8")
    return broken


@pytest.mark.parametrize("command", LOOKING)
def test_a_command_that_looks_needs_no_secret_and_no_handler(shell: Path, command: str) -> None:
    """OPS-12"""
    done = paidonce(shell, *command.split())
    assert done.returncode == 0, done.stderr
    assert "sources.payments.secrets[0]" in done.stderr, "what cannot be masked is named"


def test_one_thing_is_shown_without_them(shell: Path) -> None:
    """OPS-12"""
    assert "seen" in paidonce(shell, "payments", "show", "seen").stdout
    listed = paidonce(shell, "events", "list").stdout
    event_id = next(word for word in listed.split() if word.count("-") == 4)
    assert "seen" in paidonce(shell, "events", "show", event_id).stdout


@pytest.mark.parametrize(
    "command",
    [
        "reconcile --source payments --since 7d",
        "dead-letters retry --yes",
        "events reprocess --refused --yes",
    ],
)
def test_a_command_that_acts_names_the_secret_that_lacks(shell: Path, command: str) -> None:
    """OPS-12"""
    done = paidonce(shell, *command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "sources.payments.secrets[0]" in done.stderr
    assert "SECRET_OF_NOBODY is not set" in done.stderr
