"""The schema, as Alembic migrations of plain SQL. They only go forward.

Until the first release there is one migration, `0001_initial`, and it may be rewritten: no database
has to survive a change of it. From the first release on, a migration that was released is never
changed; a change of the schema is a new file. See docs/decisions/0024-one-initial-migration.md.

Importing Alembic costs more than all the rest of a start, so `db/schema.py` imports this module
only when there is something to migrate.
"""

from pathlib import Path
from typing import Final

from alembic import command, op
from alembic.config import Config
from sqlalchemy import Connection as AlchemyConnection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

FOLDER: Final = Path(__file__).parent


async def upgrade(url: str) -> None:
    """Bring the schema to the newest revision."""
    config = alembic_config()
    engine = create_async_engine(_alchemy_url(url), poolclass=NullPool)

    def run(connection: AlchemyConnection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
            await connection.commit()
    finally:
        await engine.dispose()


def alembic_config() -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


def run_file(name: str) -> None:
    """Run a .sql file of the versions folder; an empty line separates its statements.

    One at a time, because the driver prepares what it runs and PostgreSQL prepares single
    statements only.
    """
    script = (FOLDER / "versions" / name).read_text(encoding="utf-8")
    for statement in script.split("\n\n"):
        if any(line and not line.startswith("--") for line in statement.splitlines()):
            op.execute(statement.strip().removesuffix(";"))


def _alchemy_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"postgresql+asyncpg://{rest}" if scheme in ("postgres", "postgresql") else url
