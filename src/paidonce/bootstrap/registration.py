"""The rows that mirror the settings: sources and versions of plans."""

from collections.abc import Iterable
from typing import Final

from paidonce.core.events import SourceId
from paidonce.core.money import Money
from paidonce.core.plans import Plan
from paidonce.db.queries import Connection, from_row, load_queries
from paidonce.errors import ConfigurationError
from paidonce.settings import Settings

QUERIES: Final = load_queries(__file__)


async def register_source(connection: Connection, name: str, provider: str) -> SourceId:
    """The id of the source with this name, registered if new.

    Raises ConfigurationError if its provider changed.
    """
    await QUERIES["register_source"].run(connection, name=name, provider=provider)
    row = await QUERIES["find_source"].row(connection, name=name)
    assert row is not None
    if row["provider"] != provider:
        raise _other_provider(name, provider, row["provider"])
    return SourceId(row["id"])


async def check_providers(connection: Connection, settings: Settings) -> None:
    """Raise ConfigurationError if a registered source has another provider. Writes nothing."""
    for row in await QUERIES["all_sources"].rows(connection):
        chosen = settings.sources.get(row["name"])
        if chosen is not None and chosen.provider != row["provider"]:
            raise _other_provider(row["name"], chosen.provider, row["provider"])


def _other_provider(name: str, chosen: str, known: str) -> ConfigurationError:
    return ConfigurationError(
        f"sources.{name}.provider = {chosen!r}: this source has events of provider {known!r} "
        "already; give the new one another name"
    )


async def sync_plans(connection: Connection, configured: Iterable[Plan]) -> list[Plan]:
    """Record the plans that changed since the last start, and return all versions.

    A new price is valid for payments from now on; a plan that left the settings ends now, and one
    that is back begins again. Runs in the caller's transaction.
    """
    await QUERIES["lock_plans"].row(connection)
    now = await QUERIES["next_version"].value(connection)
    wanted = {plan.id: _terms(plan) for plan in configured}
    on_sale = {one.id: _terms(one) for one in await all_plans(connection) if not one.valid_until}
    for plan_id, terms in on_sale.items():
        if wanted.get(plan_id) != terms:
            await QUERIES["end_plan"].run(connection, plan_id=plan_id, now=now)
    for plan_id, terms in wanted.items():
        if on_sale.get(plan_id) != terms:
            await QUERIES["add_plan"].run(connection, plan_id=plan_id, now=now, **terms)
    return await all_plans(connection)


async def all_plans(connection: Connection) -> list[Plan]:
    """All versions of all plans."""
    rows = await QUERIES["all_plans"].rows(connection)
    return [from_row(Plan, row, price=Money(row["price_minor"], row["currency"])) for row in rows]


def _terms(plan: Plan) -> dict[str, object]:
    """The columns of a version of a plan."""
    price = {"price_minor": plan.price.amount_minor, "currency": plan.price.currency}
    names = ("product", "days", "months", "is_default")
    return {**price, **{name: getattr(plan, name) for name in names}}
