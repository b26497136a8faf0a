"""Guessing API keys is limited by address, and locks nobody out who held one there before."""

import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from paidonce.domain.addresses import unit_of
from paidonce.engine.bounded import Bounded
from paidonce.engine.security_log import SecurityLog
from paidonce.web.addresses import Addresses, named_headers
from paidonce.web.limits import Limit, Standing

if TYPE_CHECKING:
    from fastapi import Request

CLOSED_AT: Final = 10
"""From so many times the limit on, nobody is let in from the address."""
HELD_S: Final = 86_400.0
MAX_HELD: Final = 10_000


class KeyGuard:
    """Over the limit only keys count that were valid there before; far over it, none does.

    So whoever guesses gets no answer worth having, and an operator who shares the address with him
    goes on working. Digests are remembered, in memory only.
    """

    def __init__(
        self, addresses: Addresses, limit: Limit | None, security_log: SecurityLog
    ) -> None:
        self._addresses = addresses
        self._limit = limit
        self._log = security_log
        self._held_s: Bounded[tuple[str, bytes], float] = Bounded(MAX_HELD)

    def unit(self, request: "Request") -> str:
        """Who asks."""
        peer = request.client.host if request.client else None
        headers = named_headers(request.headers.raw)
        return unit_of(self._addresses.client(peer, headers) or "")

    def refusal(self, unit: str, key: str) -> Standing | None:
        """Why a key is not even looked at, if it is not. One more attempt is counted then."""
        over = None if self._limit is None else self._limit.refusal(unit)
        if self._limit is None or over is None:
            return None
        if self._limit.refusal(unit, CLOSED_AT) is None and self._was_held(unit, key):
            return None
        self._limit.hit(unit)
        self._log.note("key_limited", unit)
        return over

    def failed(self, unit: str) -> Standing | None:
        """A key was not valid."""
        self._log.note("key_refused", unit)
        return None if self._limit is None else self._limit.hit(unit)

    def passed(self, unit: str, key: str) -> None:
        """A key was valid."""
        self._held_s.put((unit, _digest(key)), time.monotonic())

    def _was_held(self, unit: str, key: str) -> bool:
        held_s = self._held_s.get((unit, _digest(key)))
        return held_s is not None and time.monotonic() - held_s < HELD_S


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()
