"""Runs Alembic. A module of its own, because importing Alembic costs more than all the rest."""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection as AlchemyConnection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from paidonce.store.migrations import FOLDER


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


def _alchemy_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"postgresql+asyncpg://{rest}" if scheme in ("postgres", "postgresql") else url
