"""Turns the settings into what processing and the capabilities need."""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from paidonce.bootstrap.exposure import load_metrics_token
from paidonce.bootstrap.registration import all_plans, register_source, sync_plans
from paidonce.clock import CLOCK
from paidonce.core.events import SourceId
from paidonce.core.masking import Masker
from paidonce.core.money import money
from paidonce.core.orders import Kind
from paidonce.core.plans import Plan, plan_book
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database, explain_missing_privileges
from paidonce.errors import ConfigurationError, InvalidMoneyError, did_you_mean
from paidonce.guard.setup import check_limits, load_addresses
from paidonce.hooks.registry import Handlers, import_handlers, registered_handlers
from paidonce.keys.pepper import load_pepper
from paidonce.notifications.channels import load_channels, routes
from paidonce.payouts.gateway import Gateway
from paidonce.payouts.processor import PayoutOptions
from paidonce.processing.items import Rules, Source
from paidonce.providers import load_providers, load_source_secrets, readable_source_secrets
from paidonce.providers.shared_keys import shared_keys
from paidonce.reconciliation.worker import Timer
from paidonce.settings import Settings
from paidonce.settings.secrets import resolve_secret
from paidonce.settings.sections import PlanSettings
from paidonce.telemetry import logger, mask_with

log = logger(__name__)


def check_settings(settings: Settings) -> None:
    """Raise ConfigurationError for every mistake that is visible before the start."""
    if found := shared_keys(load_providers(settings)):
        if settings.environment == "production":
            raise ConfigurationError("\n".join(found))
        log.warning("shared_keys", detail=found)
    load_plans(settings.plans)
    load_addresses(settings)
    check_limits(settings)
    if settings.security.pepper is not None:
        load_pepper(settings)
    load_handlers(settings)
    load_channels(settings.notifications)
    check_timers(settings)
    load_gateway(settings)
    load_metrics_token(settings)


async def load_rules(settings: Settings, database: Database) -> tuple[Rules, dict[str, Source]]:
    """The rules of processing, and the sources by name. Registers both in the database."""
    providers = load_providers(settings)
    handlers = load_handlers(settings)
    sources: dict[str, Source] = {}
    async with (
        explain_missing_privileges(database.url, database.schema),
        database.transaction() as connection,
    ):
        plans = await sync_plans(connection, load_plans(settings.plans))
        for name, provider in providers.items():
            source_id = await register_source(connection, name, provider.name)
            chosen = settings.sources[name]
            by_email = chosen.link_by_email
            is_payout_source = name == settings.payouts.source
            sources[name] = Source(
                source_id,
                name,
                provider,
                provider.links_by_email if by_email is None else by_email,
                chosen.lookup_rate,
                has_handlers=bool(handlers) and not is_payout_source,
                is_payout_source=is_payout_source,
                is_restricted=bool(chosen.allow),
            )
    masker = Masker([*load_source_secrets(settings), *_gateway_keys(settings)])
    mask_with(masker)
    rules = Rules(
        plan_book(plans),
        {source.id: source for source in sources.values()},
        RetryPolicy(**settings.retry.model_dump()),
        frozenset(map(Kind, settings.refunds.kept)),
        settings.refunds.subscription == "all",
        handlers,
        masker,
        routes(load_channels(settings.notifications)),
        timedelta(seconds=settings.alerts.unapplied_after_s),
    )
    return rules, sources


async def load_stored_rules(settings: Settings, database: Database) -> tuple[Rules, list[str]]:
    """Rules without sources, and which secrets cannot be read here. Registers nothing."""
    known, unknown = readable_source_secrets(settings)
    masker = Masker(known)
    mask_with(masker)
    async with database.connection() as connection:
        plans = await all_plans(connection)
    rules = Rules(plan_book(plans), {}, RetryPolicy(**settings.retry.model_dump()), masker=masker)
    return rules, unknown


def load_plans(configured: Mapping[str, PlanSettings]) -> list[Plan]:
    """The configured plans. Raises ConfigurationError."""
    return [_plan(plan_id, plan) for plan_id, plan in configured.items()]


def _plan(plan_id: str, plan: PlanSettings) -> Plan:
    try:
        price = money(plan.price, plan.currency)
    except InvalidMoneyError as error:
        raise ConfigurationError(
            f"plans.{plan_id}.price = {plan.price!r}, currency = {plan.currency!r}: {error}"
        ) from None
    now = CLOCK.now()
    return Plan(plan_id, price, plan.product, plan.days, plan.months, plan.default, now)


def load_timers(settings: Settings, sources: Mapping[str, Source]) -> dict[SourceId, Timer]:
    """The schedule of the reconciliation of each source."""
    return {
        sources[name].id: Timer(
            timedelta(hours=chosen.reconcile_every_h), timedelta(days=chosen.reconcile_days)
        )
        for name, chosen in settings.sources.items()
        if chosen.reconcile_every_h > 0
    }


def check_timers(settings: Settings) -> None:
    """Raise ConfigurationError if a source with a schedule cannot be reconciled."""
    for name, provider in load_providers(settings).items():
        every_h = settings.sources[name].reconcile_every_h
        if every_h > 0 and provider.statement_api() is None:
            raise ConfigurationError(
                f"sources.{name}.reconcile_every_h = {every_h}: {provider.name} has no list of "
                "payments to reconcile with; leave it out"
            )


def load_gateway(settings: Settings) -> Gateway | None:
    """The gateway of payouts; None if there is none. Raises ConfigurationError."""
    chosen = settings.payouts
    if chosen.gateway_url is None:
        return None
    if chosen.source not in settings.sources:
        hint = did_you_mean(chosen.source or "", settings.sources)
        raise ConfigurationError(
            f"payouts.source = {chosen.source!r}: there is no such source; name the one "
            f"whose webhooks are the gateway's callbacks{hint}"
        )
    return Gateway(chosen, next(_gateway_keys(settings), None))


def payout_options(settings: Settings, rules: Rules) -> PayoutOptions | None:
    """The options of payouts; None without a gateway."""
    source = next((one for one in rules.sources.values() if one.is_payout_source), None)
    if source is None:
        return None
    return PayoutOptions(source.id, source.name, rules.routes, settings.payouts)


def _gateway_keys(settings: Settings) -> Iterator[str]:
    """The key of the gateway of payouts, if there is one."""
    reference = settings.payouts.gateway_key
    if reference is not None:
        yield resolve_secret(reference, "payouts.gateway_key")


def load_handlers(settings: Settings) -> Handlers:
    """The user's handlers. Raises ConfigurationError."""
    import_handlers(settings.handlers)
    return registered_handlers(settings.handler_timeout_s, settings.handler_concurrency)
