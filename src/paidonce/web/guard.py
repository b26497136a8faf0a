"""The guard of the door: who is refused before his body is read, and what is held against whom.

An honest delivery costs a few lookups in dictionaries. Only what could not be verified is counted
and held against its address, so that a gateway is never refused for its own traffic; an address
from which a verified delivery came is limited less and never banned (SEC-1, SEC-4).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from paidonce import telemetry
from paidonce.domain.addresses import unit_of
from paidonce.domain.risk import Suspicion
from paidonce.engine.items import Source
from paidonce.engine.reputation import Reputation
from paidonce.engine.security_log import SecurityLog
from paidonce.errors import InvalidSignatureError, MalformedError, PaidonceError
from paidonce.settings import LimitsSettings
from paidonce.web.addresses import Addresses
from paidonce.web.limits import Limit, OnHit, Standing
from paidonce.web.problems import Problem

STRANGERS: Final = "unverified"
"""The limit of those who are not known."""
FLOOD: Final = 10
"""Whoever comes so many times his limit, and more, has no honest reason to."""
UNKNOWN: Final = "unknown"
"""The provider, in metrics, of requests that name no source."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Those that are set; None is off."""

    unverified: Limit | None
    unverified_known: Limit | None
    per_address: Limit | None
    per_source: Limit | None

    @classmethod
    def of(cls, settings: LimitsSettings, on_hit: OnHit | None = None) -> "Limits":
        """As they are configured. Whoever has no limit for strangers has none for the others."""

        def limit(name: str) -> Limit | None:
            rate = getattr(settings, name)
            return Limit(name, rate, on_hit) if rate else None

        known = limit("unverified_known") if settings.unverified else None
        return cls(limit("unverified"), known, limit("per_address"), limit("per_source"))

    def of_addresses(self) -> Iterable[Limit]:
        """Those that are counted by address."""
        all_of_them = (self.unverified, self.unverified_known, self.per_address)
        return (one for one in all_of_them if one is not None)


class Guard:
    """One for each process that takes deliveries."""

    def __init__(
        self,
        addresses: Addresses,
        reputation: Reputation,
        limits: Limits,
        security_log: SecurityLog,
        on_forgotten: Callable[[Limit, str], None] | None = None,
    ) -> None:
        self._addresses = addresses
        self._reputation = reputation
        self._limits = limits
        self._log = security_log
        self._on_forgotten = on_forgotten
        reputation.on_lifted = self.forget

    def refusal(
        self, address: str | None, source: Source | None, request_id: str
    ) -> Problem | None:
        """Why a request is refused for who sends it, before its body is read."""
        unit = unit_of(address or "")
        if self._reputation.is_banned(unit) and not self._addresses.is_named(address or ""):
            self._log.note("banned_refused", unit, _name(source), request_id)
            telemetry.bound(telemetry.BANNED, _provider(source)).inc()
            return self._banned(unit, source)
        standing = self._over(address, unit, source)
        if standing is None:
            return None
        if standing.policy == STRANGERS and standing.refused > FLOOD * standing.quota:
            self._suspect(address, unit, Suspicion.INSISTENCE)
        self._log.note("rate_limited", unit, _name(source), request_id)
        telemetry.bound(telemetry.RATE_LIMITED, _provider(source)).inc()
        return too_many(standing, source is None or source.provider.retries_refused)

    def failed(
        self,
        address: str | None,
        source: Source | None,
        request_id: str,
        action: str,
        suspicion: Suspicion | None = None,
    ) -> None:
        """A request could not be verified. It is counted, and held against its address."""
        unit = unit_of(address or "")
        limit = self._limit_of(address, unit)
        if limit is not None:
            limit.hit(unit)
        if suspicion is not None:
            self._suspect(address, unit, suspicion)
        score = self._reputation.score(unit)
        self._log.note(action, unit, _name(source), request_id, score)

    def unsigned(self, address: str | None) -> None:
        """A delivery came that nobody signs: only asking tells whether it is the gateway's."""
        if self._limits.unverified_known is not None:
            self._limits.unverified_known.hit(unit_of(address or ""))

    def verified(self, address: str | None) -> None:
        """A delivery was verified, and it is not one that somebody has captured and sends again."""
        if not address:  # a socket without addresses
            return
        unit = unit_of(address)
        if self._reputation.verified(unit) and self._limits.unverified is not None:
            self._limits.unverified.forget(unit)

    def standing(self, address: str | None) -> Standing | None:
        """How many requests that cannot be verified an address may still send."""
        unit = unit_of(address or "")
        limit = self._limit_of(address, unit)
        return None if limit is None else limit.standing(unit)

    def forget(self, unit: str) -> None:
        """Hold nothing against an address any more."""
        for limit in self._limits.of_addresses():
            limit.forget(unit)
            if self._on_forgotten is not None:
                self._on_forgotten(limit, unit)

    def _limit_of(self, address: str | None, unit: str) -> Limit | None:
        is_familiar = self._is_familiar(address, unit)
        return self._limits.unverified_known if is_familiar else self._limits.unverified

    def _suspect(self, address: str | None, unit: str, suspicion: Suspicion) -> None:
        """Hold it against a stranger."""
        if address and not self._is_familiar(address, unit):
            self._reputation.suspect(unit, suspicion)

    def _is_familiar(self, address: str | None, unit: str) -> bool:
        """Whether it is known, or somebody has named it in the settings."""
        known = self._reputation.is_known(unit)
        return known or (address is not None and self._addresses.is_named(address))

    def _over(self, address: str | None, unit: str, source: Source | None) -> Standing | None:
        """Where somebody stands who has used up one of the limits; what counts all is counted."""
        limits = self._limits
        if (
            limits.unverified is not None
            and (over := limits.unverified.refusal(unit))
            and not self._is_familiar(address, unit)
        ):
            return over
        if limits.unverified_known is not None and (over := limits.unverified_known.refusal(unit)):
            return over
        if limits.per_address is not None:
            if over := limits.per_address.refusal(unit):
                return over
            limits.per_address.hit(unit)
        if limits.per_source is not None and source is not None:
            if over := limits.per_source.refusal(source.name):
                return over
            limits.per_source.hit(source.name)
        return None

    def _banned(self, unit: str, source: Source | None) -> Problem:
        """A gateway that would not come again is told to, as with limits."""
        status = 403 if source is None or source.provider.retries_refused else 503
        after_s = max(int(self._reputation.banned_s(unit)), 1) if status == 503 else None
        return Problem(status, "ADDRESS_BANNED", "This address is banned for a while.", after_s)


def too_many(standing: Standing, does_retry: bool = True) -> Problem:
    """The answer to whoever has used up a limit."""
    return Problem(
        429 if does_retry else 503,
        "RATE_LIMITED",
        "There were too many requests; wait before you send another.",
        standing.reset_s,
        fields=standing.fields(),
    )


def suspicion_of(error: PaidonceError, source: Source) -> tuple[str, Suspicion | None] | None:
    """What a refused delivery is held for: its name in the log, and whether it adds risk.

    Nothing that is authentic is, and what comes to a source that nobody signs for adds no risk:
    there, nobody can prove that he is the gateway.
    """
    match error:
        case InvalidSignatureError():
            return "signature_refused", Suspicion.BAD_SIGNATURE
        case MalformedError() if not error.is_authentic:
            return "malformed_refused", Suspicion.MALFORMED if source.provider.is_signed else None
        case _:
            return None


def _name(source: Source | None) -> str | None:
    return None if source is None else source.name


def _provider(source: Source | None) -> str:
    return UNKNOWN if source is None else source.provider.name
