"""`keys`: who may ask."""

from typing import Annotated, Final, Literal
from uuid import UUID

import typer

from paidonce.cli.terminal import Config, Json, operate, operator, show, told

MAX_SHOWN: Final = 1_000

commands = typer.Typer(help="API keys for operators.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="keys")


@commands.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="What it is for; it stands in the audit log.")],
    scope: Annotated[Literal["read", "operate", "admin"], typer.Option(help="What it may do.")],
    config: Config = None,
) -> None:
    """Make an API key and print it, once."""
    from paidonce.operations import Scope

    typer.echo(operate(config, lambda verbs: verbs.create_key(name, Scope(scope), operator())).key)


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
    found = operate(config, lambda verbs: verbs.keys(limit=MAX_SHOWN))
    show(found.items, columns, json)


@commands.command("revoke")
def revoke_key(key_id: UUID, config: Config = None) -> None:
    """Make an API key invalid for good."""
    operate(config, lambda verbs: verbs.revoke_key(key_id, operator()))
    told.print(f"Key {key_id} is revoked.")
