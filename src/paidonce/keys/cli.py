"""`paidonce keys`."""

from typing import Annotated, Final, Literal
from uuid import UUID

import typer

from paidonce.core.actors import Scope
from paidonce.db.paging import ListQuery, all_pages
from paidonce.terminal.commands import Commands, Result
from paidonce.terminal.output import columns, stderr, stdout
from paidonce.terminal.session import Config, Services, Use, operate, operator

MAX_SHOWN: Final = 1_000

commands = Commands("keys", "API keys for operators.")

COLUMNS: Final = columns(
    "id, name, scope, hint as begins with, last_used_at as last used, revoked_at as revoked"
)


@commands.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="Its purpose, for the audit log.")],
    scope: Annotated[Literal["read", "operate", "admin"], typer.Option(help="What it may do.")],
    config: Config = None,
) -> None:
    """Create an API key and print it. It is shown only once."""
    made = operate(config, lambda services: services.keys.create(name, Scope(scope), operator()))
    stdout.print(made.key)


@commands.operation("list", COLUMNS, use=Use.STORED)
def list_keys(services: Services) -> Result:
    """List the API keys."""
    return all_pages(services.keys.search, ListQuery(), MAX_SHOWN)


@commands.command("revoke")
def revoke_key(key_id: UUID, config: Config = None) -> None:
    """Revoke an API key."""
    operate(config, lambda services: services.keys.revoke(key_id, operator()))
    stderr.print(f"Key {key_id} is revoked.")
