"""From the settings to what the rooms need. What is wrong is a ConfigurationError."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from paidonce import telemetry
from paidonce.domain.events import SourceId
from paidonce.domain.masking import Masker
from paidonce.domain.money import money
from paidonce.domain.orders import Kind
from paidonce.domain.plans import Plan, PlanBook, plan_book
from paidonce.domain.wallet_payments import Pauses
from paidonce.doorkeeping import configured_addresses, refuse_wrong_limits
from paidonce.engine.channels import configured_channels, told_to
from paidonce.engine.handlers import Handlers, import_handlers, registered
from paidonce.engine.items import Rules, Source
from paidonce.engine.reconciler import Timer
from paidonce.engine.retry import RetryPolicy
from paidonce.errors import ConfigurationError, InvalidMoneyError
from paidonce.operations.pepper import pepper_of
from paidonce.providers import configured_providers, configured_secrets
from paidonce.services.gateway import Access
from paidonce.services.payments import Terms
from paidonce.settings import PlanSettings, Settings, resolve_secret
from paidonce.store.db import Database, rights_told
from paidonce.store.schema import register_source, sync_plans


def refuse_wrong(settings: Settings) -> None:
    """Raise ConfigurationError for what can be known to be wrong before anything is started."""
    configured_providers(settings)
    configured_plans(settings.plans)
    configured_addresses(settings)
    refuse_wrong_limits(settings)
    if settings.security.pepper is not None:
        pepper_of(settings)
    configured_handlers(settings)
    configured_channels(settings.notifications)
    refuse_timers_without_books(settings)
    configured_gateway(settings)


async def load_rules(settings: Settings, database: Database) -> tuple[Rules, dict[str, Source]]:
    """What settling depends on, and the sources by name; both known to the database from now on."""
    providers = configured_providers(settings)
    handlers = configured_handlers(settings)
    sources: dict[str, Source] = {}
    async with rights_told(database.url), database.transaction() as connection:
        plans = await sync_plans(connection, configured_plans(settings.plans))
        for name, provider in providers.items():
            source_id = await register_source(connection, name, provider.name)
            chosen = settings.sources[name]
            by_email = chosen.link_by_email
            if by_email is None:
                by_email = provider.links_by_email
            is_calling_back = name == settings.payment_service.source
            sources[name] = Source(
                source_id,
                name,
                provider,
                by_email,
                chosen.ask_rate,
                has_handlers=bool(handlers) and not is_calling_back,
                is_calling_back=is_calling_back,
            )
    return _rules_of(settings, plan_book(plans, settings.plans), sources, handlers), sources


def _rules_of(
    settings: Settings, plans: PlanBook, sources: dict[str, Source], handlers: Handlers
) -> Rules:
    by_id: dict[SourceId, Source] = {source.id: source for source in sources.values()}
    kept = frozenset(map(Kind, settings.refunds.kept))
    masker = Masker([*configured_secrets(settings), *_gateway_keys(settings)])
    telemetry.mask_with(masker)
    retry = RetryPolicy(**settings.retry.model_dump())
    channels = configured_channels(settings.notifications)
    return Rules(plans, by_id, retry, kept, handlers, masker, told_to(channels))


def configured_plans(configured: Mapping[str, PlanSettings]) -> list[Plan]:
    """The plans as they are from now on. Raises ConfigurationError when a price is no money."""
    return [_plan(plan_id, plan) for plan_id, plan in configured.items()]


def _plan(plan_id: str, plan: PlanSettings) -> Plan:
    try:
        price = money(plan.price, plan.currency)
    except InvalidMoneyError as error:
        raise ConfigurationError(
            f"plans.{plan_id}.price = {plan.price!r}, currency = {plan.currency!r}: {error}"
        ) from None
    if price.amount_minor == 0:
        raise ConfigurationError(f"plans.{plan_id}.price = {plan.price!r}: give a price above zero")
    now = datetime.now(UTC)
    return Plan(plan_id, price, plan.product, plan.days, plan.months, plan.default, now)


def configured_timers(settings: Settings, sources: Mapping[str, Source]) -> dict[SourceId, Timer]:
    """When each source is reconciled by itself."""
    return {
        sources[name].id: Timer(
            timedelta(hours=chosen.reconcile_every_h), timedelta(days=chosen.reconcile_days)
        )
        for name, chosen in settings.sources.items()
        if chosen.reconcile_every_h > 0
    }


def refuse_timers_without_books(settings: Settings) -> None:
    """Raise ConfigurationError for a timer of a source that cannot be reconciled."""
    for name, provider in configured_providers(settings).items():
        every_h = settings.sources[name].reconcile_every_h
        if every_h > 0 and provider.books() is None:
            raise ConfigurationError(
                f"sources.{name}.reconcile_every_h = {every_h}: {provider.name} has no list of "
                "payments to reconcile with; leave it out"
            )


def configured_gateway(settings: Settings) -> Access | None:
    """How the gateway of the payment service is reached, if it has one.

    Raises ConfigurationError.
    """
    chosen = settings.payment_service
    if chosen.gateway_url is None:
        return None
    if chosen.source not in settings.sources:
        raise ConfigurationError(
            f"payment_service.source = {chosen.source!r}: there is no such source; name the one "
            "whose webhooks are the gateway's callbacks"
        )
    return Access(
        url=chosen.gateway_url,
        key=next(_gateway_keys(settings), None),
        timeout_s=chosen.timeout_s,
        rate=chosen.rate,
        max_calls=chosen.max_calls,
    )


def configured_terms(settings: Settings, rules: Rules) -> Terms | None:
    """On what terms the payment service works; None without a gateway."""
    source = next((one for one in rules.sources.values() if one.is_calling_back), None)
    if source is None:
        return None
    chosen = settings.payment_service
    pauses = Pauses(
        first_s=chosen.first_pause_s,
        longest_s=chosen.longest_pause_s,
        silent_after_s=chosen.silent_after_s,
        pending_after_s=chosen.pending_after_s,
        slow_s=chosen.slow_pause_s,
    )
    return Terms(source.id, source.name, rules.told_to, pauses, chosen.callback_attempts)


def _gateway_keys(settings: Settings) -> Iterator[str]:
    """The one key that the payment service's gateway is given, if there is one."""
    reference = settings.payment_service.gateway_key
    if reference is not None:
        yield resolve_secret(reference, "payment_service.gateway_key")


def configured_handlers(settings: Settings) -> Handlers:
    """The user's own, of this program and of what it imports. Raises ConfigurationError."""
    import_handlers(settings.handlers)
    return registered(settings.handler_timeout_s, settings.handler_concurrency)
