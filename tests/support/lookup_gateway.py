"""A gateway that says only "look", its provider, and a real server to be asked.

The provider is found by its entry point in the servers that tests start (`installed`), so that
nothing of ours stands in for anything.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from aiohttp import web

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import (
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidSignatureError,
    TimestampExpiredError,
)
from paidonce.providers.contract import (
    ConfirmationRequest,
    Delivery,
    GatewayQuery,
    GatewayRequest,
    Identity,
    LookupRequired,
    Provider,
    ProviderConfig,
    SampleEvent,
    Translation,
    fingerprint,
)

ROOT: Final = Path(__file__).parents[2]
API_KEY: Final = "only the gateway knows"
SIGNED: Final = {"content-type": "application/json", "signature": "right"}


@dataclass(frozen=True)
class Looking(Provider):
    """Its deliveries name a payment; what became of it is asked at `api`."""

    api: str
    name: ClassVar = "looking"
    content_types: ClassVar = frozenset({"application/json"})
    links_by_email: ClassVar = True

    def verify(self, delivery: Delivery) -> None:
        if delivery.headers.get("signature") != "right":
            raise InvalidSignatureError("the signature is not right")
        if delivery.json.get("stale"):
            raise TimestampExpiredError("it was signed long ago")

    def signature_method(self, delivery: Delivery) -> str:
        return "word"

    def evidence_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {}

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.json
        meaning = fingerprint(said["payment"], said.get("event_type"))
        key = said.get("key") or said["payment"]
        return Identity(key, meaning, "look", None, said["payment"], nonce=said.get("nonce"))

    def translate(self, delivery: Delivery) -> Translation:
        said = delivery.json
        if "confirm" in said:
            return ConfirmationRequest(said["payment"], said["confirm"], "RUB")
        if said.get("event_type") == "nothing":
            return Ignored(Code.NON_SUCCESS_STATUS, "it says nothing that counts")
        return LookupRequired(lambda: self._look(said["payment"]))

    def build_sample(self, sample: SampleEvent) -> tuple[dict[str, str], bytes]:
        raise NotImplementedError

    def _look(self, payment: str) -> GatewayQuery[PaymentEvent | Ignored]:
        said: dict[str, Any] = {"more": 1}
        while "more" in said:
            call = GatewayRequest(
                "GET", f"{self.api}/payments/{payment}", {"authorization": API_KEY}
            )
            reply = yield call
            if reply.status == 404:
                raise GatewayUnreachableError("it does not know the payment yet")
            said = reply.json
        if said["payment"] != payment:
            raise GatewayMismatchError("it speaks of another payment", said["may_pass"])
        return PaymentEvent(
            event_type=EventType(said["event_type"]),
            ids=(ExternalId("payment", payment),),
            amount=Money(said["amount_minor"], "RUB"),
            email=said["email"],
        )


def configure(setup: ProviderConfig) -> Looking:
    """The entry point."""
    return Looking(setup.require_text("api", "http://127.0.0.1:9000"))


def installed(folder: Path) -> dict[str, str]:
    """Leave the provider in a folder as pip would; returns the variables to find it with."""
    info = folder / "looking_gateway-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: looking-gateway\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[paidonce.providers]\nlooking = tests.support.lookup_gateway:configure\n"
    )
    return {"PYTHONPATH": f"{folder}:{ROOT}:{ROOT}/src"}


def looks(payment: str, **said: Any) -> bytes:
    """The body of a delivery."""
    return json.dumps({"payment": payment, **said}).encode()


def tells(payment: str, **said: Any) -> web.Response:
    """A reply that says what became of the payment: it was paid, unless it says otherwise."""
    usual = {
        "payment": payment,
        "event_type": "paid",
        "amount_minor": 99_000,
        "email": f"{payment}@example.com",
    }
    return web.json_response(usual | said)


Replies = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Gateway:
    """The gateway's server. It says that everything was paid, unless a test scripts otherwise."""

    api: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    times_s: list[float] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    scripts: dict[str, Replies] = field(default_factory=dict)
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    """Until this is set, `hang` does not reply."""
    someone_asks: asyncio.Event = field(default_factory=asyncio.Event)

    async def reply(self, request: web.Request) -> web.StreamResponse:
        payment = request.match_info["payment"]
        assert request.headers["authorization"] == API_KEY
        self.asked[payment] += 1
        self.times_s.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        self.someone_asks.set()
        try:
            script = self.scripts.get(payment)
            return tells(payment) if script is None else await script(request)
        finally:
            self.under_way -= 1

    async def hang(self, request: web.Request) -> web.StreamResponse:
        """Reply when the test says so."""
        await self.silent.wait()
        return tells(request.match_info["payment"])


@asynccontextmanager
async def gateway_running() -> AsyncIterator[Gateway]:
    """A gateway on a port of its own."""
    gateway = Gateway()
    app = web.Application()
    app.router.add_get("/payments/{payment}", gateway.reply)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    gateway.api = f"http://127.0.0.1:{port}"
    try:
        yield gateway
    finally:
        gateway.silent.set()
        await runner.cleanup()
