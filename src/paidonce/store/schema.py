"""The schema itself: migrations, monthly partitions, and the rows that mirror the settings."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from paidonce.domain.events import SourceId
from paidonce.domain.money import Money
from paidonce.domain.plans import Plan
from paidonce.errors import ConfigurationError, DatabaseUnfitError
from paidonce.store.db import Database
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
MONTHS_AHEAD: Final = 3


async def migrate(database: Database) -> str | None:
    """Bring the schema up to date; several processes may call it at once.

    Returns the revision it went to, or None when there was nothing to do. Raises
    DatabaseUnfitError when the schema is newer than this program.
    """
    newest = known_revisions()[0]
    async with database.connection() as connection:
        if await _current_revision(connection) == newest:
            return None
        await QUERIES["wait_for_ever"].run(connection)
        await QUERIES["lock_migrations"].row(connection)
        try:
            current = await _current_revision(connection)
            if current == newest:
                return None
            _refuse_newer(current)
            from paidonce.store.upgrade import upgrade  # Alembic takes half a second to import

            await upgrade(database.url)
            return newest
        finally:
            await QUERIES["unlock_migrations"].row(connection)


async def revisions(connection: Connection) -> tuple[str | None, list[str]]:
    """The schema's revision, and those that this program knows, the newest first."""
    return await _current_revision(connection), known_revisions()


def known_revisions() -> list[str]:
    """The revisions that this program knows, the newest first: the names of their files."""
    versions = Path(__file__).parent / "migrations" / "versions"
    return sorted((path.stem[:4] for path in versions.glob("[0-9]*.py")), reverse=True)


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


def _refuse_newer(current: str | None) -> None:
    if current is not None and current not in known_revisions():
        raise DatabaseUnfitError(
            f"the schema is at revision {current}, which this program does not know: "
            f"it was migrated by a newer Paidonce; update this one"
        )


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
