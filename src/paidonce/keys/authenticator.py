"""Authenticates requests by their API key, and limits how often an address may guess keys."""

import time
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from fastapi import Request

from paidonce.api.problems import ProblemError
from paidonce.api.requests import NO_KEY
from paidonce.core.actors import Actor
from paidonce.guard.addresses import Addresses, named_headers, sender_unit
from paidonce.guard.limits import Limit, RateLimitState
from paidonce.guard.request_guard import too_many_requests
from paidonce.guard.security_log import SecurityLog
from paidonce.keys.service import KeyService
from paidonce.runtime.bounded import Bounded

CLOSED_AT: Final = 10
"""Over this many times the limit, every key from the address is rejected."""
HELD_S: Final = 86_400.0
MAX_HELD: Final = 10_000


class KeyAuthenticator:
    """Authenticates requests by their key (see `api.requests.Authenticator`).

    Invalid keys are limited by address. Over the limit, only keys that were valid from that address
    before are checked; far over it, none is. So guessing is useless, and an operator who shares the
    address can go on working. Only digests of keys are remembered, and only in memory.
    """

    def __init__(
        self,
        keys: KeyService,
        addresses: Addresses,
        limit: Limit | None,
        security_log: SecurityLog,
    ) -> None:
        self._keys = keys
        self._addresses = addresses
        self._limit = limit
        self._log = security_log
        self._held_s: Bounded[tuple[str, bytes], float] = Bounded(MAX_HELD)

    async def authenticate(self, request: Request, key: str) -> Actor:
        """The owner of the key. Raises ProblemError, also when its address is over the limit."""
        unit = self._unit(request)
        held = unit, blake2b(key.encode(), digest_size=16).digest()
        over = self._over_limit(unit, held)
        if over is not None:
            self._log.note("key_limited", unit)
            raise ProblemError(too_many_requests(over))
        actor = await self._keys.authenticate(key)
        if actor is None:
            self._log.note("key_refused", unit)
            fields = () if self._limit is None else self._limit.hit(unit).fields()
            raise ProblemError(replace(NO_KEY, fields=fields))
        self._held_s.put(held, time.monotonic())
        return actor

    def _unit(self, request: Request) -> str:
        """Who asks."""
        peer = request.client.host if request.client else None
        headers = named_headers(request.headers.raw)
        return sender_unit(self._addresses.client(peer, headers) or "")

    def _over_limit(self, unit: str, held: tuple[str, bytes]) -> RateLimitState | None:
        """Why a key is not even looked at, if it is not. One more attempt is counted then."""
        if self._limit is None or (over := self._limit.exceeded(unit)) is None:
            return None
        held_s = self._held_s.get(held)
        was_held = held_s is not None and time.monotonic() - held_s < HELD_S
        if was_held and self._limit.exceeded(unit, CLOSED_AT) is None:
            return None
        self._limit.hit(unit)
        return over
