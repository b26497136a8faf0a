"""Calls to gateways: never too many, never for long, and never believed beyond their size."""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from yarl import URL

from paidonce.errors import GatewayUnreachableError
from paidonce.providers.contract import Call, Reply

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0
MAX_REPLY_BYTES: Final = 1024 * 1024
AWAY_PAUSE_S: Final = 10.0
PAUSES_S: Final = (0.2, 1.0)

SHARE_OF_RATE: Final = 0.5
"""How much of a source's `ask_rate` is for what no webhook waits for; webhooks have all of it."""

_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a gateway is waited for."""

    connect_s: float = CONNECT_TIMEOUT_S
    call_s: float = CALL_TIMEOUT_S
    pauses_s: tuple[float, ...] = PAUSES_S
    """Between attempts at one question; one more attempt than these are made at once."""
    away_s: float = AWAY_PAUSE_S
    """For how long no new question is begun after a call got no reply."""


class Telephone:
    """An HTTP client for all gateways, which follows nobody anywhere."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None

    async def call(self, call: Call) -> Reply:
        """What the gateway answers. Raises GatewayUnreachableError, also for 3xx, 429 and 5xx."""
        import aiohttp  # it takes long, and most services and commands call nobody

        headers = {"accept-encoding": "identity", **call.headers}
        body = None
        if call.json is not None:
            headers["content-type"] = "application/json"
            body = orjson.dumps(call.json)
        try:
            async with self._opened().request(
                call.method,
                URL(call.url, encoded=True),  # exactly what the provider wrote
                headers=headers,
                data=body,
                allow_redirects=False,
            ) as response:
                return Reply(_answering(response.status), await _whole(response))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise GatewayUnreachableError(f"no reply: {type(error).__name__}") from None

    async def close(self) -> None:
        """Hang up; the next call opens it again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            waits = self._patience
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(waits.call_s, sock_connect=waits.connect_s),
                connector=aiohttp.TCPConnector(limit=0),  # whoever calls has his own
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _answering(status: int) -> int:
    if status == _TOO_MANY or status >= 500 or 300 <= status < 400:
        raise GatewayUnreachableError(f"it replied {status}")
    return status


async def _whole(response: "aiohttp.ClientResponse") -> bytes:
    """The body, up to a limit."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_REPLY_BYTES:
            raise GatewayUnreachableError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise GatewayUnreachableError("its reply is encoded, which was not asked for")
    return bytes(body)


class Line:
    """The way to one source's gateway: with a limited rate, and a memory of its being away."""

    def __init__(self, telephone: Telephone, rate: float, away_s: float = AWAY_PAUSE_S) -> None:
        self._telephone = telephone
        self._interval_s = 1 / rate
        self._away_s = away_s
        self._next_turn_s = 0.0
        self._away_until_s = 0.0
        self._is_doubtful = False

    async def call(self, call: Call) -> Reply:
        """The reply, when it is this call's turn. Raises GatewayUnreachableError."""
        await self._turn()
        try:
            reply = await self._telephone.call(call)
        except GatewayUnreachableError:
            self._is_doubtful = True
            self._away_until_s = time.monotonic() + self._away_s
            raise
        self._is_doubtful = False
        self._away_until_s = 0.0
        return reply

    def room(self, limit: int) -> int:
        """How many questions may be under way: none while it is away, then one to find out."""
        if self.away_for_s > 0:
            return 0
        return 1 if self._is_doubtful else limit

    @property
    def away_for_s(self) -> float:
        """How long it is to be left alone."""
        return max(self._away_until_s - time.monotonic(), 0.0)

    async def _turn(self) -> None:
        """Wait until so many calls a second allow one more."""
        now_s = time.monotonic()
        turn_s = max(self._next_turn_s, now_s)
        self._next_turn_s = turn_s + self._interval_s
        await asyncio.sleep(turn_s - now_s)
