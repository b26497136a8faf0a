"""HTTP requests to gateways, with limits on their rate, their duration and the response size."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from yarl import URL

from paidonce.errors import GatewayUnreachableError
from paidonce.providers.contract import GatewayRequest, GatewayResponse
from paidonce.telemetry import logger

if TYPE_CHECKING:
    import aiohttp

log = logger(__name__)

MAX_REPLY_BYTES: Final = 1024 * 1024
SHARE_OF_RATE: Final = 0.5
"""The share of a source's `lookup_rate` for lookups that no webhook waits for."""
_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Timeouts and pauses of requests to gateways."""

    connect_s: float = 5.0
    call_s: float = 10.0
    pauses_s: tuple[float, ...] = (0.2, 1.0)  # before each further attempt of one query
    away_s: float = 10.0  # how long no new lookup starts after a request got no response


class HttpClient:
    """An HTTP client for all gateways. It follows no redirects and uses no proxy or cookies."""

    def __init__(self, timeouts: HttpTimeouts) -> None:
        self.timeouts = timeouts
        self._session: aiohttp.ClientSession | None = None

    async def call(self, request: GatewayRequest) -> GatewayResponse:
        """Send the request. Raises GatewayUnreachableError, also for 3xx, 429 and 5xx."""
        import aiohttp  # a slow import, and most services and commands send no requests

        headers = {"accept-encoding": "identity", **request.headers}
        body = None
        if request.json is not None:
            headers["content-type"] = "application/json"
            body = orjson.dumps(request.json)
        try:
            async with self._open_session().request(
                request.method,
                URL(request.url, encoded=True),  # exactly as the provider wrote it
                headers=headers,
                data=body,
                allow_redirects=False,
            ) as response:
                return GatewayResponse(_check_status(response.status), await _read_body(response))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise GatewayUnreachableError(f"no response: {type(error).__name__}") from None

    async def close(self) -> None:
        """Close the session; the next request opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            limits = self.timeouts
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(limits.call_s, sock_connect=limits.connect_s),
                connector=aiohttp.TCPConnector(limit=0),  # the callers have their own limits
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _check_status(status: int) -> int:
    if status == _TOO_MANY or status >= 500 or 300 <= status < 400:
        raise GatewayUnreachableError(f"the gateway answers {status}")
    return status


async def _read_body(response: "aiohttp.ClientResponse") -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_REPLY_BYTES:
            raise GatewayUnreachableError(f"the response is larger than {MAX_REPLY_BYTES} bytes")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise GatewayUnreachableError("the response is compressed, which was not requested")
    return bytes(body)


class RateLimitedClient:
    """Sends requests to one source's gateway at a limited rate, and knows how long to pause.

    `pauses` is the name of a source whose lookups pause after a failure: that is logged.
    """

    def __init__(self, client: HttpClient, rate: float, pauses: str | None = None) -> None:
        self._pauses = pauses
        self.pauses_s = client.timeouts.pauses_s
        self._client = client
        self._interval_s = 1 / rate
        self._away_s = client.timeouts.away_s
        self._next_turn_s = 0.0
        self._away_until_s = 0.0
        self._has_failed = False
        self.require: Callable[[], None] = lambda: None
        """Called before each request, to raise if this process may not send it any more."""

    async def call(self, request: GatewayRequest) -> GatewayResponse:
        """Send the request when the rate allows it. Raises GatewayUnreachableError."""
        await self._wait_for_turn()
        self.require()
        try:
            response = await self._client.call(request)
        except GatewayUnreachableError as error:
            if self._pauses is not None and not self._has_failed:
                log.warning("gateway_paused", source=self._pauses, detail=str(error))
            self._has_failed = True
            self._away_until_s = time.monotonic() + self._away_s
            raise
        if self._pauses is not None and self._has_failed:
            log.info("gateway_resumed", source=self._pauses)
        self._has_failed = False
        self._away_until_s = 0.0
        return response

    def room(self, limit: int) -> int:
        """Return how many lookups may run: none during the pause after a failure, then one."""
        if self.away_for_s > 0:
            return 0
        return 1 if self._has_failed else limit

    @property
    def away_for_s(self) -> float:
        """How long the pause after a failure still lasts."""
        return max(self._away_until_s - time.monotonic(), 0.0)

    async def _wait_for_turn(self) -> None:
        now_s = time.monotonic()
        turn_s = max(self._next_turn_s, now_s)
        self._next_turn_s = turn_s + self._interval_s
        await asyncio.sleep(turn_s - now_s)
