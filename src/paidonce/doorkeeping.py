"""What guards the door, put together: limits, reputation, allow-lists, and their tasks."""

import asyncio
from dataclasses import dataclass

from paidonce.domain.risk import BanPolicy
from paidonce.engine.reputation import Reputation
from paidonce.engine.security_log import SecurityLog
from paidonce.settings import SecuritySettings, Settings
from paidonce.store.db import Database
from paidonce.store.notices import Telling
from paidonce.web.addresses import Addresses
from paidonce.web.guard import Guard, Limits
from paidonce.web.key_guard import KeyGuard
from paidonce.web.limits import Limit
from paidonce.web.shared_limits import SharedCounts


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """Who says who may come in."""

    addresses: Addresses
    guard: Guard
    key_guard: KeyGuard
    reputation: Reputation
    security_log: SecurityLog
    shared: SharedCounts | None

    async def run(self) -> None:
        """What it does in the background, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.reputation.run())
                tasks.create_task(self.addresses.hosts.run())
                if self.shared is not None:
                    tasks.create_task(self.shared.run())
        finally:
            self.security_log.flush()


async def doorkeeper(settings: Settings, database: Database, told_to: Telling) -> Doorkeeper:
    """The guard of the door, which knows by now whom it has to know. Raises DatabaseAwayError."""
    addresses = configured_addresses(settings)
    security_log = SecurityLog()
    shared = SharedCounts(settings.limits.storage) if settings.limits.storage else None
    on_hit = shared.add if shared else None
    limits = Limits.of(settings.limits, on_hit)
    keys = Limit("keys", settings.limits.keys, on_hit) if settings.limits.keys else None
    reputation = Reputation(database, _policy(settings.security), security_log, told_to)
    guard = Guard(addresses, reputation, limits, security_log, shared.forget if shared else None)
    key_guard = KeyGuard(addresses, keys, security_log)
    await addresses.hosts.look_up()
    await reputation.run_once()
    return Doorkeeper(addresses, guard, key_guard, reputation, security_log, shared)


def configured_addresses(settings: Settings) -> Addresses:
    """Who is believed, and who may deliver. Raises ConfigurationError when it is no network."""
    allowed = {name: source.allow for name, source in settings.sources.items()}
    return Addresses(settings.server.trusted_proxies, allowed)


def refuse_wrong_limits(settings: Settings) -> None:
    """Raise ConfigurationError when the limits cannot be shared as they should be."""
    if settings.limits.storage:
        SharedCounts(settings.limits.storage)


def _policy(security: SecuritySettings) -> BanPolicy:
    return BanPolicy(
        threshold=security.ban_threshold or float("inf"),
        half_life_s=security.ban_half_life_minutes * 60,
        first_s=security.ban_minutes * 60,
        longest_s=security.longest_ban_minutes * 60,
    )
