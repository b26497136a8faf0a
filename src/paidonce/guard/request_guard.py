"""Protects the webhook endpoint: rejects requests before their body is read (SEC-1, SEC-4).

An honest delivery costs a few dictionary lookups. Only requests that fail verification count
against their address, so a gateway is never rejected for its own traffic. An address that sent a
verified delivery has a higher limit and is never banned.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from paidonce.api.problems import Problem
from paidonce.core.events import SourceId
from paidonce.errors import InvalidSignatureError, MalformedError, PaidonceError
from paidonce.guard.addresses import Addresses, sender_unit
from paidonce.guard.bans import Suspicion
from paidonce.guard.limits import Limit, OnHit, RateLimitState
from paidonce.guard.security_log import SecurityLog
from paidonce.guard.senders import SenderRecords
from paidonce.processing.items import Source
from paidonce.settings.sections import LimitsSettings
from paidonce.telemetry import metrics

UNVERIFIED: Final = "unverified"
"""The limit of senders that are not verified."""
FLOOD: Final = 10
"""More than this many times the limit adds to the risk score of an address."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that are set; None is off."""

    unverified: Limit | None
    verified_senders: Limit | None
    per_address: Limit | None
    per_source: Limit | None
    api_keys: Limit | None

    @classmethod
    def of(cls, settings: LimitsSettings, on_hit: OnHit | None = None) -> "Limits":
        """The configured limits. Without `unverified` there is no `verified_senders` either."""

        def limit(name: str) -> Limit | None:
            rate = getattr(settings, name)
            return Limit(name, rate, on_hit) if rate else None

        return cls(
            limit("unverified"),
            limit("verified_senders") if settings.unverified else None,
            limit("per_address"),
            limit("per_source"),
            limit("api_keys"),
        )

    def of_addresses(self) -> Iterable[Limit]:
        """The limits of deliveries that are counted by address."""
        limits = (self.unverified, self.verified_senders, self.per_address)
        return (one for one in limits if one is not None)


class RequestGuard:
    """Decides which requests are rejected. One for each process that receives deliveries."""

    def __init__(
        self,
        addresses: Addresses,
        senders: SenderRecords,
        limits: Limits,
        security_log: SecurityLog,
        on_forgotten: Callable[[Limit, str], None] | None = None,
    ) -> None:
        self._addresses = addresses
        self._senders = senders
        self._limits = limits
        self._log = security_log
        self._on_forgotten = on_forgotten
        senders.bans.on_lifted = self.forget

    def reject(self, address: str | None, source: Source | None, request_id: str) -> Problem | None:
        """The problem to answer with, if the sender is banned or over a limit."""
        unit = sender_unit(address or "")
        if self._senders.is_banned(unit) and not self._addresses.is_named(address or ""):
            self._log.note("banned_rejected", unit, _name(source), request_id)
            metrics.bound(metrics.BANNED, *_labels(source)).inc()
            return self._banned(unit, source)
        state = self._over_limit(address, unit, source)
        if state is None:
            return None
        if state.policy == UNVERIFIED and state.rejected > FLOOD * state.quota:
            self._suspect(address, unit, Suspicion.INSISTENCE)
        self._log.note("rate_limited", unit, _name(source), request_id)
        metrics.bound(metrics.RATE_LIMITED, *_labels(source)).inc()
        return too_many_requests(state, source is None or source.provider.retries_rejected)

    def failed(
        self,
        address: str | None,
        source: Source | None,
        request_id: str,
        action: str,
        suspicion: Suspicion | None = None,
    ) -> None:
        """Count a request that failed verification against its address."""
        unit = sender_unit(address or "")
        limit = self._limit_of(address, unit)
        if limit is not None:
            limit.hit(unit)
        if suspicion is not None:
            self._suspect(address, unit, suspicion)
        if suspicion is Suspicion.BAD_SIGNATURE and source and self.has_sent_to(unit, source.id):
            self._senders.failing.failed(unit, source)
        score = self._senders.bans.score(unit)
        self._log.note(action, unit, _name(source), request_id, score)

    def unsigned(self, address: str | None) -> None:
        """Count an unsigned delivery: only a lookup shows whether the gateway sent it."""
        if self._limits.verified_senders is not None:
            self._limits.verified_senders.hit(sender_unit(address or ""))

    def overloaded(self, address: str | None, source: Source, request_id: str) -> None:
        """Log that too many of the sender wait for a lookup. It is no suspicion."""
        self._log.note("lookups_full", sender_unit(address or ""), source.name, request_id)

    def has_sent_to(self, unit: str, source_id: SourceId) -> bool:
        """Whether it is a verified sender of this source."""
        return self._senders.has_sent_to(unit, source_id)

    def verified(self, address: str | None, source_id: SourceId) -> None:
        """Record the sender of a verified delivery that is not a replay."""
        self._senders.failing.verified(source_id)
        if not address:  # a Unix socket
            return
        unit = sender_unit(address)
        if self._senders.verified(unit, source_id) and self._limits.unverified is not None:
            self._limits.unverified.forget(unit)

    def limit_state(self, address: str | None) -> RateLimitState | None:
        """How many unverified requests the address may still send."""
        unit = sender_unit(address or "")
        limit = self._limit_of(address, unit)
        return None if limit is None else limit.state(unit)

    def forget(self, unit: str) -> None:
        """Reset all limits of an address."""
        for limit in self._limits.of_addresses():
            limit.forget(unit)
            if self._on_forgotten is not None:
                self._on_forgotten(limit, unit)

    def _limit_of(self, address: str | None, unit: str) -> Limit | None:
        is_trusted = self._is_trusted(address, unit)
        return self._limits.verified_senders if is_trusted else self._limits.unverified

    def _suspect(self, address: str | None, unit: str, suspicion: Suspicion) -> None:
        """Add to the risk score of an address that is not trusted."""
        if address and not self._is_trusted(address, unit):
            self._senders.suspect(unit, suspicion)

    def _is_trusted(self, address: str | None, unit: str) -> bool:
        """Whether it is a verified sender, or listed in the settings."""
        is_verified = self._senders.is_verified_sender(unit)
        return is_verified or (address is not None and self._addresses.is_named(address))

    def _over_limit(
        self, address: str | None, unit: str, source: Source | None
    ) -> RateLimitState | None:
        """The limit that is exceeded, if any. Counts the request for limits on all requests."""
        limits = self._limits
        if (
            limits.unverified is not None
            and (over := limits.unverified.exceeded(unit))
            and not self._is_trusted(address, unit)
        ):
            return over
        if limits.verified_senders is not None and (over := limits.verified_senders.exceeded(unit)):
            return over
        if limits.per_address is not None:
            if over := limits.per_address.exceeded(unit):
                return over
            limits.per_address.hit(unit)
        if limits.per_source is not None and source is not None:
            if over := limits.per_source.exceeded(source.name):
                return over
            limits.per_source.hit(source.name)
        return None

    def _banned(self, unit: str, source: Source | None) -> Problem:
        """403, or 503 for a gateway that does not retry a 403."""
        status = 403 if source is None or source.provider.retries_rejected else 503
        after_s = max(int(self._senders.bans.left_s(unit)), 1) if status == 503 else None
        return Problem(status, "ADDRESS_BANNED", "This address is banned for a while.", after_s)


def too_many_requests(state: RateLimitState, does_retry: bool = True) -> Problem:
    """The answer to a request over a limit."""
    return Problem(
        429 if does_retry else 503,
        "RATE_LIMITED",
        "Too many requests; wait before you send another.",
        state.reset_s,
        fields=state.fields(),
    )


def suspicion_of(error: PaidonceError, source: Source) -> tuple[str, Suspicion | None] | None:
    """How a rejected delivery is logged, and what it adds to the risk score; None if authentic.

    A malformed delivery to an unsigned source adds no risk: its sender cannot prove anything.
    """
    match error:
        case InvalidSignatureError():
            return "signature_rejected", Suspicion.BAD_SIGNATURE
        case MalformedError() if not error.is_authentic:
            return "malformed_rejected", Suspicion.MALFORMED if source.provider.is_signed else None
        case _:
            return None


def _name(source: Source | None) -> str | None:
    return None if source is None else source.name


def _labels(source: Source | None) -> tuple[str, str]:
    return metrics.UNKNOWN if source is None else source.labels
