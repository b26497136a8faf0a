"""`paidonce database`."""

import typer

from paidonce.db.embedded import files
from paidonce.errors import EmbeddedDatabaseError
from paidonce.settings import Settings
from paidonce.settings.reading import load_settings
from paidonce.terminal.output import stdout
from paidonce.terminal.session import Config

commands = typer.Typer(name="database", help="The database.", no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """The database."""


@commands.command("url")
def print_url(config: Config = None) -> None:
    """Print the URL of the database, for psql and pg_dump. It may hold a password."""
    stdout.print(_url(load_settings(config)))


def _url(settings: Settings) -> str:
    """The URL that is configured, or that of the embedded database if it runs."""
    if not settings.database.is_embedded:
        return settings.database.url
    data_dir = settings.database.data_dir
    try:
        placement = files.find(data_dir)
        if placement is not None and not files.may_enter(placement):
            raise PermissionError(f"it belongs to another user: {placement.lifecycle_lock}")
    except OSError as error:
        raise EmbeddedDatabaseError(f"the embedded database in {data_dir}: {error}") from None
    if placement is None or files.running_postmaster(placement, None) is None:
        raise EmbeddedDatabaseError(
            f"the embedded database in {data_dir} is not running; `paidonce serve` starts it"
        )
    return placement.dsn
