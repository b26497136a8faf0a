"""What strangers write is shown, and obeyed by no terminal (SEC-9)."""

import ast
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
import typer.main

from paidonce.cli import app
from paidonce.providers import load_providers
from paidonce.providers.contract import SampleEvent
from paidonce.settings.reading import load_settings
from tests.providers.cases.standard import whsec
from tests.support.servers import Shared
from tests.support.service import BASIC, paid
from tests.support.tools import items, paidonce

HOSTILE: Final = "\x1b[2J\x9b31m\x07\x08\x7f\u202e\u2066\u200b\u2028[red]:boom:\r\nFORGED\U000e0041"
ESCAPED: Final = (
    r"\x1b[2J\x9b31m\x07\x08\x7f\u202e\u2066\u200b\u2028[red]:boom:\r\nFORGED\U000e0041"
)
IN_HEADERS: Final = "\x9b31m[red]:boom:"
"""What a header can hold of it."""
CONFIG: Final = f"""{BASIC}
[sources.shop]
provider = "standard"
secrets = ["{whsec("shop")}"]
link_by_email = true
[limits]
unverified = ""
api_keys = ""
"""
SOURCE: Final = Path(__file__).parents[2] / "src" / "paidonce"
SHOWING: Final = {
    "list", "show", "audit", "stats", "doctor", "status", "entries", "export", "callbacks", "verify"
}  # fmt: skip

PRINTING: Final = {
    "print", "typer.echo", "typer.secho", "typer.confirm", "typer.prompt", "sys.stdout",
    "sys.stderr",
}  # fmt: skip

Ids = Mapping[str, str]
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "events list": ("events", "list"),
    "events show": ("events", "show", "{event}"),
    "payments list": ("payments", "list"),
    "payments show": ("payments", "show", "{payment}"),
    "orders list": ("orders", "list"),
    "orders show": ("orders", "show", HOSTILE),
    "users list": ("users", "list"),
    "users show": ("users", "show", "{user}"),
    "users export": ("users", "export", "{user}"),
    "subscriptions list": ("subscriptions", "list", "--email", "known@example.com"),
    "subscriptions show": ("subscriptions", "show", "{subscription}"),
    "audit": ("audit",),
    "stats": ("stats",),
    "doctor": ("doctor",),
    "dead-letters list": ("dead-letters", "list"),
    "replay list": ("replay", "list"),
    "replay show": ("replay", "show", "{replay}"),
    "bus status": ("bus", "status"),
    "bus dead-letters list": ("bus", "dead-letters", "list"),
    "bans list": ("bans", "list"),
    "keys list": ("keys", "list"),
    "wallet show": ("wallet", "show", "{wallet}"),
    "wallet list": ("wallet", "list", "--owner", HOSTILE),
    "wallet entries": ("wallet", "entries", "{wallet}"),
    "wallet verify": ("wallet", "verify"),
    "wallet-payments list": ("wallet-payments", "list"),
    "wallet-payments show": ("wallet-payments", "show", HOSTILE),
    "wallet-payments callbacks": ("wallet-payments", "callbacks"),
    "views show": ("views", "show", HOSTILE),
}
QUIET: Final = {
    "users list", "users show", "subscriptions list", "subscriptions show", "stats", "doctor",
    "bus status", "wallet show", "wallet list", "wallet entries", "wallet verify", "replay show",
    "wallet-payments list", "wallet-payments show", "views show",
}  # fmt: skip
"""They show nothing that a stranger writes freely."""


@pytest.fixture(scope="module")
def ids(shared: Shared) -> Ids:
    """Fill every table with what a stranger could write, and return what the commands need."""
    service = shared.service
    user = service.user("known@example.com")
    service.deliver(paid("plain", email="known@example.com"))
    order = {
        "reference": HOSTILE,
        "amount": "5.00",
        "currency": "EUR",
        "email": "known@example.com",
    }
    assert service.api("POST", "/orders", order).http == 201
    made = service.api("POST", "/wallets", {"owner": HOSTILE, "currency": "EUR"}).json
    service.api("POST", "/keys", {"name": HOSTILE, "scope": "read"})
    for sent in _samples(shared):
        headers = {**sent[0], "user-agent": IN_HEADERS.encode("latin-1").decode("latin-1")}
        service.request("POST", "/webhooks/shop", sent[1], headers)
    service.deliver(f"no JSON {HOSTILE}".encode())
    service.request("POST", f"/webhooks/{quote(HOSTILE)}", b"{}")
    (payment,) = items(service, "/payments", order=HOSTILE)
    reason = {"reason": HOSTILE}
    service.api("POST", f"/payments/{payment['id']}/mark-for-refund", reason)
    _fill(shared)
    (event, *_) = items(service, "/events", order=HOSTILE)
    replay = service.api("POST", "/replays", {"filter": {"order": HOSTILE}, "dry_run": True}).json
    (subscription,) = items(service, "/subscriptions", email="known@example.com")
    found = {"event": event, "payment": payment, "user": user, "wallet": made, "replay": replay}
    return {name: one["id"] for name, one in found.items()} | {"subscription": subscription["id"]}


def _samples(shared: Shared) -> Iterator[tuple[Mapping[str, str], bytes]]:
    provider = load_providers(load_settings(shared.service.folder / "paidonce.toml"))["shop"]
    usual: dict[str, Any] = {"amount": "5.00", "currency": "EUR", "status": "paid"}
    for number, changed in enumerate(
        (
            {"payment_id": HOSTILE, "order": HOSTILE, "plan_id": HOSTILE},
            {"payment_id": f"{HOSTILE}2", "status": HOSTILE},
            {"payment_id": f"{HOSTILE}3", "email": f'"{HOSTILE}"@evil.example'},
        )
    ):
        yield provider.build_sample(SampleEvent(**{**usual, "event_id": str(number), **changed}))


def _fill(shared: Shared) -> None:
    """What only a gateway, a consumer or a handler writes."""
    shared.rows(
        "INSERT INTO bus_dead_letters (consumer, event_id, topic, key, type, version, time, body,"
        " error, attempts) VALUES ('g', gen_random_uuid(), 'payment', $1, $1, 1, now(), '', $1, 1)"
        " RETURNING id",
        HOSTILE,
    )
    shared.rows(
        "INSERT INTO bans (address, reason, score, times, until) VALUES ('192.0.2.1', $1, 1, 1,"
        " now() + interval '1 day') RETURNING address",
        HOSTILE,
    )
    shared.rows(
        "INSERT INTO gateway_callbacks (id, source_id, transaction_id, gateway_status, event_id,"
        " status, received_at, ended_at) SELECT gen_random_uuid(), id, $1, 'failed',"
        " gen_random_uuid(), 'DEAD_LETTER', now(), now() FROM sources LIMIT 1 RETURNING id",
        HOSTILE,
    )
    shared.rows(
        "UPDATE webhook_events SET status = 'DEAD_LETTER', error_code = 'INTERNAL',"
        " error_message = $1, processed_at = now() WHERE error_code = 'UNLINKED_PAYMENT'"
        " RETURNING id",
        HOSTILE,
    )


def _showing(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, one in getattr(command, "commands", {}).items():
        yield from _showing(one, (*path, name))
    if path and path[-1] in SHOWING:
        yield " ".join(path)


def test_every_command_that_shows_something_is_tried() -> None:
    """SEC-9: whoever adds a command adds it to `COMMANDS`."""
    assert set(_showing(typer.main.get_command(app))) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_prints_what_a_terminal_obeys(shared: Shared, ids: Ids, name: str) -> None:
    """SEC-9 USE-2"""
    arguments = [one.format(**ids) if "{" in one else one for one in COMMANDS[name]]
    done = paidonce(shared.service.folder, *arguments)
    told = done.stdout + done.stderr
    assert _obeyed(told) == set(), told
    assert not re.search(r"^\s*FORGED", told, re.MULTILINE)
    in_json = paidonce(shared.service.folder, *arguments, "--json")
    if name != "users export":
        assert _obeyed(in_json.stdout) == set(), in_json.stdout
    if in_json.stdout:
        assert name in QUIET or HOSTILE in _texts(json.loads(in_json.stdout)), in_json.stdout
    if name not in QUIET and name != "users export":
        assert ESCAPED in told, told


def test_stored_headers_and_bodies_are_shown_escaped(shared: Shared, ids: Ids) -> None:
    """SEC-9 OPS-2: a body keeps its lines, and nothing else."""
    told = paidonce(shared.service.folder, "events", "show", ids["event"]).stdout
    assert r"user-agent: \x9b31m[red]:boom:" in told
    (refused, *_) = items(shared.service, "/events", status="FAILED_FINAL", source="payments")
    told = paidonce(shared.service.folder, "events", "show", refused["id"]).stdout
    assert _obeyed(told) == set(), told
    assert r"\x1b[2J" in told


def test_errors_are_printed_escaped(shared: Shared) -> None:
    """SEC-9: an error may quote what was asked for."""
    done = paidonce(shared.service.folder, "orders", "show", f"{HOSTILE}-absent")
    assert done.returncode == 1
    assert _obeyed(done.stderr) == set(), done.stderr


def test_only_one_module_prints() -> None:
    """SEC-9: so that nothing is printed unescaped."""
    printing = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        for name in _ways_to_print(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert printing == {
        "terminal/output.py: rich.console",
        "terminal/output.py: rich.table",
        "terminal/output.py: typer.echo",
        "terminal/output.py: typer.confirm",
        "telemetry/log_writer.py: sys.stdout",
        "telemetry/__init__.py: sys.stdout",
        "telemetry/__init__.py: sys.stderr",
        "cli/server.py: sys.stdout",
        "cli/server.py: sys.stderr",
    }


def _ways_to_print(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if name in PRINTING:
            yield name
        if isinstance(node, ast.ImportFrom) and node.module in ("rich.console", "rich.table"):
            yield node.module


def _obeyed(text: str) -> set[str]:
    """The characters that a terminal would obey, or that hide something."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {repr(one) for one in text if one != "\n" and unicodedata.category(one) in hidden}


def _texts(value: Any) -> str:
    match value:
        case dict():
            return "\n".join(map(_texts, [*value.keys(), *value.values()]))
        case list():
            return "\n".join(map(_texts, value))
        case _:
            return str(value)
