"""Builds the guard of the webhook endpoint from the settings."""

from dataclasses import dataclass

from paidonce.db.pool import Database
from paidonce.guard.addresses import Addresses
from paidonce.guard.bans import BanPolicy
from paidonce.guard.limits import Limit
from paidonce.guard.request_guard import Limits, RequestGuard
from paidonce.guard.security_log import SecurityLog
from paidonce.guard.senders import SenderRecords
from paidonce.guard.shared_limits import SharedCounts
from paidonce.notifications.model import Routes
from paidonce.runtime.service import Service
from paidonce.settings import Settings
from paidonce.settings.sections import SecuritySettings


@dataclass(frozen=True, slots=True)
class GuardComponents:
    """The parts of the guard, and its background services."""

    addresses: Addresses
    guard: RequestGuard
    api_key_limit: Limit | None
    security_log: SecurityLog
    services: tuple[Service, ...]


async def build_guard(settings: Settings, database: Database, routes: Routes) -> GuardComponents:
    """Build the guard, with bans and verified senders loaded. Raises DatabaseUnavailableError."""
    addresses = load_addresses(settings)
    security_log = SecurityLog()
    shared = SharedCounts(settings.limits.storage) if settings.limits.storage else None
    limits = Limits.of(settings.limits, shared.add if shared else None)
    senders = SenderRecords(database, _policy(settings.security), security_log, routes)
    guard = RequestGuard(
        addresses, senders, limits, security_log, shared.forget if shared else None
    )
    await addresses.hosts.look_up()
    await senders.run_once()
    services = (senders, addresses.hosts, *filter(None, [shared]))
    return GuardComponents(addresses, guard, limits.api_keys, security_log, services)


def load_addresses(settings: Settings) -> Addresses:
    """Trusted proxies and allow lists. Raises ConfigurationError."""
    allowed = {name: source.allow for name, source in settings.sources.items()}
    return Addresses(settings.server.trusted_proxies, allowed)


def check_limits(settings: Settings) -> None:
    """Raise ConfigurationError if the shared storage of the limits cannot be used."""
    if settings.limits.storage:
        SharedCounts(settings.limits.storage)


def _policy(security: SecuritySettings) -> BanPolicy:
    return BanPolicy(
        threshold=security.ban_threshold or float("inf"),
        half_life_s=security.ban_half_life_minutes * 60,
        first_s=security.ban_minutes * 60,
        longest_s=security.longest_ban_minutes * 60,
    )
