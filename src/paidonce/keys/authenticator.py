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


class KeyGuard:
    """Limits invalid keys by address.

    Over the limit, only keys that were valid from that address before are checked; far over it,
    none is. So guessing is useless, and an operator who shares the address can go on working. Only
    digests of keys are remembered, and only in memory.
    """

    def __init__(
        self, addresses: Addresses, limit: Limit | None, security_log: SecurityLog
    ) -> None:
        self._addresses = addresses
        self._limit = limit
        self._log = security_log
        self._held_s: Bounded[tuple[str, bytes], float] = Bounded(MAX_HELD)

    def unit(self, request: Request) -> str:
        """Who asks."""
        peer = request.client.host if request.client else None
        headers = named_headers(request.headers.raw)
        return sender_unit(self._addresses.client(peer, headers) or "")

    def refusal(self, unit: str, key: str) -> RateLimitState | None:
        """Why a key is not even looked at, if it is not. One more attempt is counted then."""
        over = None if self._limit is None else self._limit.exceeded(unit)
        if self._limit is None or over is None:
            return None
        if self._limit.exceeded(unit, CLOSED_AT) is None and self._was_held(unit, key):
            return None
        self._limit.hit(unit)
        self._log.note("key_limited", unit)
        return over

    def failed(self, unit: str) -> RateLimitState | None:
        """A key was not valid."""
        self._log.note("key_refused", unit)
        return None if self._limit is None else self._limit.hit(unit)

    def passed(self, unit: str, key: str) -> None:
        """A key was valid."""
        self._held_s.put((unit, _digest(key)), time.monotonic())

    def _was_held(self, unit: str, key: str) -> bool:
        held_s = self._held_s.get((unit, _digest(key)))
        return held_s is not None and time.monotonic() - held_s < HELD_S


class KeyAuthenticator:
    """Authenticates requests by their key (see `api.requests.Authenticator`)."""

    def __init__(self, keys: KeyService, guard: KeyGuard) -> None:
        self._keys = keys
        self._guard = guard

    async def authenticate(self, request: Request, key: str) -> Actor:
        """The owner of the key. Raises ProblemError, also when its address is over the limit."""
        unit = self._guard.unit(request)
        over = self._guard.refusal(unit, key)
        if over is not None:
            raise ProblemError(too_many_requests(over))
        actor = await self._keys.authenticate(key)
        if actor is None:
            state = self._guard.failed(unit)
            raise ProblemError(replace(NO_KEY, fields=() if state is None else state.fields()))
        self._guard.passed(unit, key)
        return actor


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()
