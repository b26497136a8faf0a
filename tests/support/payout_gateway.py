"""The gateway of the payment service, over real HTTP, with whatever may go wrong with it.

It keeps the contract: one charge for each idempotency key, and callbacks by Standard Webhooks. Each
payment has its manners: what it answers, how late, and what it calls back with, when and how often.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

KEY: Final = "gateway-key-that-nobody-else-knows"
SECRET: Final = "whsec_" + base64.b64encode(b"callbacks-of-the-gateway").decode()
CALL_AGAIN_S: Final = 0.2
MAX_CALLS_BACK: Final = 300
"""How often a callback is tried while nobody takes it."""


@dataclass(frozen=True)
class Manners:
    """How the gateway deals with one payment."""

    answers: str = "pending"
    refuses: int | None = None  # with this status, and does not charge
    delay_s: float = 0.0  # before it answers, after it has charged
    is_silent: int = 0  # how many of the first calls it never answers, though it charges
    breaks: int = 0  # how many of the first calls it answers with 503, without charging
    calls_back: tuple[str, ...] = ("succeeded",)  # these, one after the other
    copies: int = 1  # how often each
    calls_back_first: bool = False  # before it answers
    call_back_after_s: float = 0.0
    ends: str | None = None  # what a later question is answered with, if not by the last callback


@dataclass
class Charge:
    """One payment at the gateway."""

    transaction_id: str
    payment_id: str
    amount: str
    currency: str
    status: str


@dataclass
class PayingGateway:
    """A gateway that runs in a thread of its own."""

    manners_of: Callable[[str], Manners] = lambda payment_id: Manners()
    callback_url: str | None = None
    charges: dict[str, Charge] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    told: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    unauthorized: int = 0
    is_away: bool = False
    url: str = ""
    _loop: asyncio.AbstractEventLoop | None = None
    _session: aiohttp.ClientSession | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def tell(self, request: web.Request) -> web.StreamResponse:
        said = json.loads(await request.read())
        payment_id = said["payment_id"]
        self.told[payment_id] += 1
        self.keys[payment_id].add(request.headers["idempotency-key"])
        manners = self.manners_of(payment_id)
        if not self._lets_in(request):
            return web.json_response({"error": "who are you?"}, status=401)
        if self.is_away or self.told[payment_id] <= manners.breaks:
            return web.json_response({"error": "not now"}, status=503)
        if manners.refuses is not None:
            return web.json_response({"error": "no"}, status=manners.refuses)
        charge = self._charged(request.headers["idempotency-key"], said, manners)
        return await self._answer(charge, manners, self.told[payment_id] <= manners.is_silent)

    async def ask(self, request: web.Request) -> web.StreamResponse:
        payment_id = request.match_info["payment_id"]
        self.asked[payment_id] += 1
        if not self._lets_in(request):
            return web.json_response({"error": "who are you?"}, status=401)
        if self.is_away:
            return web.json_response({"error": "not now"}, status=503)
        charge = self.charges.get(payment_id)
        if charge is None:
            return web.json_response({"error": "unknown"}, status=404)
        manners = self.manners_of(payment_id)
        calls = self.told[payment_id] + self.asked[payment_id]
        return await self._answer(charge, manners, calls <= manners.is_silent)

    def _lets_in(self, request: web.Request) -> bool:
        is_verified_sender = request.headers.get("authorization") == f"Bearer {KEY}"
        self.unauthorized += not is_verified_sender
        return is_verified_sender

    def _charged(self, key: str, said: dict[str, Any], manners: Manners) -> Charge:
        """One charge for each idempotency key, however often it is told of."""
        if key not in self.charges:
            payment_id = said["payment_id"]
            transaction_id = f"tx-{len(self.charges)}-{payment_id}"
            self.charges[key] = Charge(
                transaction_id, payment_id, said["amount"], said["currency"], manners.answers
            )
            self._call_back_later(self.charges[key], manners)
        return self.charges[key]

    async def _answer(
        self, charge: Charge, manners: Manners, is_silent: bool
    ) -> web.StreamResponse:
        if is_silent:
            await asyncio.sleep(3600)
        await asyncio.sleep(manners.delay_s)
        answer = {"transaction_id": charge.transaction_id, "status": charge.status}
        return web.json_response(answer, status=201)

    def _call_back_later(self, charge: Charge, manners: Manners) -> None:
        if self.callback_url is None or not manners.calls_back:
            charge.status = manners.ends or charge.status
            return
        task = asyncio.get_running_loop().create_task(self._call_back(charge, manners))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call_back(self, charge: Charge, manners: Manners) -> None:
        if not manners.calls_back_first:
            await asyncio.sleep(manners.delay_s + manners.call_back_after_s)
        for word in manners.calls_back:
            charge.status = word
            for copy in range(manners.copies):
                await self._deliver(charge, word, copy)

    async def _deliver(self, charge: Charge, word: str, copy: int) -> None:
        """Until it is taken; each copy is an event of its own."""
        body = callback_body(charge.transaction_id, word, charge.amount, charge.currency)
        name = f"evt-{charge.transaction_id}-{word}-{copy}"
        for _ in range(MAX_CALLS_BACK):
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                assert self._session is not None
                assert self.callback_url is not None
                headers = signed(name, body)
                async with self._session.post(
                    self.callback_url, data=body, headers=headers
                ) as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(CALL_AGAIN_S)


def callback_body(transaction_id: str, word: str, amount: str, currency: str) -> bytes:
    """What a callback says."""
    data = {"payment_id": transaction_id, "amount": amount, "currency": currency}
    return json.dumps({"type": f"payment.{word}", "data": data}).encode()


def signed(event_id: str, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks, by an independent signer."""
    at = str(int(time.time()))
    secret = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.new(secret, f"{event_id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


@contextmanager
def running(gateway: PayingGateway) -> Iterator[PayingGateway]:
    """Serve on a port of loopback until the end of the block."""
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        gateway._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_post("/v1/payments", gateway.tell)
        app.router.add_get("/v1/payments/{payment_id}", gateway.ask)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
            gateway._session = session
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.05)
            for task in gateway._tasks:
                task.cancel()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield gateway
    finally:
        done.set()
        thread.join(10)
