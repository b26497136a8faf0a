"""`paidonce users` and `paidonce subscriptions`."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

from tests.support.servers import Shared
from tests.support.service import Service, paid
from tests.support.tools import items, paidonce

HOWTO: Final = Path(__file__).parents[2] / "docs" / "howto" / "people.md"


def asked(service: Service, *arguments: str) -> Any:
    done = paidonce(service.folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_users_are_created_changed_and_merged_on_the_command_line(shared: Shared) -> None:
    """OPS-7 USR-1 USR-2 USE-2: an address is as good as an id."""
    service = shared.service
    service.deliver(paid("cli-1", email="cli@example.com"))
    user = asked(service, "users", "create", "cli@example.com")
    assert len(items(service, "/subscriptions", user_id=user["id"])) == 1, "applied at once"
    changed = asked(service, "users", "change-email", "cli@example.com", "cli-new@example.com")
    assert changed["former_emails"] == ["cli@example.com"]
    assert asked(service, "users", "show", "CLI@example.com") == changed
    assert asked(service, "users", "show", user["id"]) == changed
    other = asked(service, "users", "create", "cli-other@example.com")
    names = ["cli-new@example.com", "--into", other["id"], "--reason", "one person"]
    assert asked(service, "users", "merge", *names)["id"] == other["id"]
    again = asked(service, "users", "merge", user["id"], *names[1:])
    assert again["id"] == other["id"]
    (found,) = asked(service, "users", "list", "--email", "cli@example.com")
    assert found["id"] == other["id"]
    assert other["id"] in paidonce(service.folder, "users", "list").stdout
    shown = paidonce(service.folder, "users", "show", "cli@example.com")
    assert "cli-other@example.com" in shown.stdout
    assert "cli-new@example.com" in shown.stderr
    wrong = paidonce(service.folder, "users", "create", "A <a@example.com>")
    assert wrong.returncode == 1
    assert "exactly one address" in wrong.stderr
    unknown = paidonce(service.folder, "users", "show", "nobody@example.com")
    assert (unknown.returncode, "there is no user" in unknown.stderr) == (1, True)
    actors = shared.rows("SELECT DISTINCT actor FROM audit_log WHERE action = 'user_merged'")
    assert [row["actor"].partition(":")[0] for row in actors] == ["cli"]


def test_subscriptions_are_listed_and_shown(shared: Shared) -> None:
    """OPS-7 FUL-7"""
    service = shared.service
    user = service.user("subscribed@example.com")
    service.deliver(paid("subscribed-1", email="subscribed@example.com"))
    (one,) = asked(service, "subscriptions", "list", "--email", "subscribed@example.com")
    assert asked(service, "subscriptions", "list", "--user-id", user["id"]) == [one]
    (period,) = asked(service, "subscriptions", "show", one["id"])["periods"]
    assert period["end"] == one["current_period_end"]
    table = paidonce(service.folder, "subscriptions", "show", one["id"])
    assert period["payment_id"] in table.stdout
    assert "give either" in paidonce(service.folder, "subscriptions", "list").stderr


def test_a_user_is_exported_and_erased_on_the_command_line(shared: Shared) -> None:
    """OPS-7 USR-3 USR-4: erasing asks first."""
    service = shared.service
    user = service.user("forget@example.com")
    service.deliver(paid("forget-1", email="forget@example.com"))
    printed = paidonce(service.folder, "users", "export", "forget@example.com")
    assert json.loads(printed.stdout)["events"][0]["payment"] == "forget-1"
    why = ("--reason", "asked")
    asks = paidonce(service.folder, "users", "erase", "forget@example.com", *why)
    assert asks.returncode != 0, "nobody answered"
    assert asked(service, "users", "show", user["id"])["erased_at"] is None
    erased = asked(service, "users", "erase", "forget@example.com", *why, "--yes")
    assert erased["events"] == 1
    assert asked(service, "users", "show", user["id"])["email"] is None
    again = paidonce(service.folder, "users", "erase", user["id"], *why, "--yes")
    assert "Erased: 0 events" in again.stderr


def test_the_commands_of_the_how_to_work(shared: Shared) -> None:
    """USE-6 OPS-7"""
    shown = re.findall(r"^    paidonce (.*)$", HOWTO.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == 6
    for line in shown:
        done = paidonce(shared.service.folder, *shlex.split(line))
        assert done.returncode == 0, (line, done.stderr)
