"""`paidonce keys`."""

from typing import Annotated, Final, Literal
from uuid import UUID

import typer

from paidonce.db.paging import ListQuery, all_pages
from paidonce.terminal.output import Json, show, stderr
from paidonce.terminal.session import Config, operate, operator

MAX_SHOWN: Final = 1_000

commands = typer.Typer(help="API keys for operators.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="keys")


@commands.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="Its purpose, for the audit log.")],
    scope: Annotated[Literal["read", "operate", "admin"], typer.Option(help="What it may do.")],
    config: Config = None,
) -> None:
    """Create an API key and print it. It is shown only once."""
    from paidonce.core.actors import Scope

    typer.echo(
        operate(config, lambda services: services.keys.create(name, Scope(scope), operator())).key
    )


@commands.command("list")
def list_keys(config: Config = None, json: Json = False) -> None:
    """List the API keys."""
    columns = {
        "id": lambda key: key.id,
        "name": lambda key: key.name,
        "scope": lambda key: key.scope,
        "begins with": lambda key: key.hint,
        "last used": lambda key: key.last_used_at,
        "revoked": lambda key: key.revoked_at,
    }
    found = operate(
        config, lambda services: all_pages(services.keys.search, ListQuery(), MAX_SHOWN)
    )
    show(found, columns, json)


@commands.command("revoke")
def revoke_key(key_id: UUID, config: Config = None) -> None:
    """Revoke an API key."""
    operate(config, lambda services: services.keys.revoke(key_id, operator()))
    stderr.print(f"Key {key_id} is revoked.")
