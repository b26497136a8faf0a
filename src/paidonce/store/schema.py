"""The schema itself: migrations, monthly partitions, and the rows that mirror the settings."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection as AlchemyConnection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from paidonce.domain.events import SourceId
from paidonce.domain.money import Money
from paidonce.domain.plans import Plan
from paidonce.errors import ConfigurationError, DatabaseUnfitError
from paidonce.store.db import Database
from paidonce.store.migrations import FOLDER
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
MONTHS_AHEAD: Final = 3


async def migrate(database: Database) -> str | None:
    """Bring the schema up to date; several processes may call it at once.

    Returns the revision it went to, or None when there was nothing to do. Raises
    DatabaseUnfitError when the schema is newer than this program.
    """
    async with database.connection() as connection:
        await QUERIES["wait_for_ever"].run(connection)
        await QUERIES["lock_migrations"].row(connection)
        try:
            script = ScriptDirectory.from_config(alembic_config())
            head = script.get_current_head()
            current = await _current_revision(connection)
            if current == head:
                return None
            _refuse_newer(script, current)
            await _upgrade(database.url)
            return head
        finally:
            await QUERIES["unlock_migrations"].row(connection)


async def revisions(connection: Connection) -> tuple[str | None, list[str]]:
    """The schema's revision, and those that this program knows, the newest first."""
    script = ScriptDirectory.from_config(alembic_config())
    known = [revision.revision for revision in script.walk_revisions()]
    return await _current_revision(connection), known


def alembic_config() -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


async def ensure_partitions(connection: Connection, now: datetime) -> list[str]:
    """Make the partitions of last month, this one and those ahead; returns the new ones' names.

    Each is made standalone and then attached, so that nobody who writes events has to wait long.
    """
    async with connection.transaction():
        await QUERIES["lock_partitions"].row(connection)
        there = {row["relname"] for row in await QUERIES["partition_names"].rows(connection)}
        missing = [month for month in _months(now) if partition_name(month) not in there]
        for month in missing:
            name = partition_name(month)
            first, last = _uuid_at(month), _uuid_at(next_month(month))
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {name} (LIKE webhook_events INCLUDING DEFAULTS "
                f"INCLUDING CONSTRAINTS INCLUDING INDEXES)"
            )
            await connection.execute(
                f"ALTER TABLE webhook_events ATTACH PARTITION {name} "
                f"FOR VALUES FROM ('{first}') TO ('{last}')"
            )
    return [partition_name(month) for month in missing]


async def register_source(connection: Connection, name: str, provider: str) -> SourceId:
    """The id of the source with this name. Raises ConfigurationError if its provider changed."""
    await QUERIES["register_source"].run(connection, name=name, provider=provider)
    row = await QUERIES["find_source"].row(connection, name=name)
    assert row is not None
    if row["provider"] != provider:
        raise ConfigurationError(
            f"sources.{name}.provider = {provider!r}: this source has events of provider "
            f"{row['provider']!r} already; give the new one another name"
        )
    return SourceId(row["id"])


async def sync_plans(connection: Connection, configured: Iterable[Plan]) -> list[Plan]:
    """Record every plan that changed since the last start, and return all versions.

    A changed price counts for what is paid from now on. Runs in the caller's transaction.
    """
    await QUERIES["lock_plans"].row(connection)
    latest = {plan.id: plan for plan in await _all_plans(connection)}
    for plan in configured:
        if _terms(latest.get(plan.id)) != _terms(plan):
            await QUERIES["add_plan"].run(
                connection,
                plan_id=plan.id,
                price_minor=plan.price.amount_minor,
                currency=plan.price.currency,
                product=plan.product,
                days=plan.days,
                months=plan.months,
                is_default=plan.is_default,
            )
    return await _all_plans(connection)


async def _current_revision(connection: Connection) -> str | None:
    there = await QUERIES["has_revisions"].row(connection)
    if there is None or not there["is_there"]:
        return None
    row = await QUERIES["current_revision"].row(connection)
    return row["version_num"] if row else None


def _refuse_newer(script: ScriptDirectory, current: str | None) -> None:
    known = {revision.revision for revision in script.walk_revisions()}
    if current is not None and current not in known:
        raise DatabaseUnfitError(
            f"the schema is at revision {current}, which this program does not know: "
            f"it was migrated by a newer Paidonce; update this one"
        )


async def _upgrade(url: str) -> None:
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


def _alchemy_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"postgresql+asyncpg://{rest}" if scheme in ("postgres", "postgresql") else url


async def _all_plans(connection: Connection) -> list[Plan]:
    return [
        Plan(
            id=row["plan_id"],
            price=Money(row["price_minor"], row["currency"]),
            product=row["product"],
            days=row["days"],
            months=row["months"],
            is_default=row["is_default"],
            valid_from=row["valid_from"],
        )
        for row in await QUERIES["all_plans"].rows(connection)
    ]


def _terms(plan: Plan | None) -> tuple[object, ...] | None:
    if plan is None:
        return None
    return (plan.price, plan.product, plan.days, plan.months, plan.is_default)


def _months(now: datetime) -> Iterator[datetime]:
    month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    yield _previous_month(month)
    for _ in range(MONTHS_AHEAD + 1):
        yield month
        month = next_month(month)


def next_month(month: datetime) -> datetime:
    """The first instant of the month after this one."""
    return month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)


def _previous_month(month: datetime) -> datetime:
    return month.replace(
        year=month.year - (month.month == 1),
        month=12 if month.month == 1 else month.month - 1,
    )


def partition_name(month: datetime) -> str:
    """What the partition of a month is called."""
    return f"webhook_events_{month:%Y_%m}"


def _uuid_at(time: datetime) -> UUID:
    """The smallest UUIDv7-shaped value of that millisecond: a bound between partitions."""
    return UUID(int=int(time.timestamp() * 1000) << 80)
