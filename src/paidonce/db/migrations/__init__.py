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

from paidonce.db.queries import SCHEMA, in_schema

FOLDER: Final = Path(__file__).parent


async def upgrade(url: str, schema: str) -> None:
    """Bring the tables in this schema to the newest revision. The schema has to exist."""
    config = alembic_config()
    config.attributes["schema"] = schema
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
    schema = op.get_context().version_table_schema or SCHEMA
    script = in_schema((FOLDER / "versions" / name).read_text(encoding="utf-8"), schema)
    for statement in script.split("\n\n"):
        if any(line and not line.startswith("--") for line in statement.splitlines()):
            op.execute(statement.strip().removesuffix(";"))


def _alchemy_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"postgresql+asyncpg://{rest}" if scheme in ("postgres", "postgresql") else url
