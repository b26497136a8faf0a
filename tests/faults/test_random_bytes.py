"""Bodies and requests that nobody thought of."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.hostility import Besieged
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import RANDOM_BODIES, RANDOM_REQUESTS
from tests.faults.wire import Heard, converse, request
from tests.support.service import paid, signature

FIELDS: Final = sorted(paid("x") | {"plan_id": "", "paid_at": "", "test": "", "payment": ""})
MAX_BYTES: Final = 2_000
REFUSALS: Final = {400, 401, 413, 415}


any_text = st.text(st.characters(exclude_categories=()), max_size=10)  # lone surrogates too
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    any_text,
    st.sampled_from(
        ["paid", "succeeded", "990.00", "RUB", "XXX", "1e9", "-1", "", "０", " 990.00"]
    ),
    st.datetimes().map(lambda time: time.isoformat()),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(any_text, inner), max_leaves=8
)
objects = st.dictionaries(st.sampled_from(FIELDS) | any_text, values, max_size=10)
honest = st.builds(lambda changes: {**paid("fuzz"), **changes}, objects)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An honest body with a piece replaced."""
    body = json.dumps(paid("fuzz")).encode()
    start = draw(st.integers(0, len(body)))
    end = draw(st.integers(start, len(body)))
    return body[:start] + draw(st.binary(max_size=50)) + body[end:]


bodies = st.one_of(
    st.binary(max_size=MAX_BYTES),
    values.map(lambda value: json.dumps(value).encode()),
    objects.map(lambda said: json.dumps(said).encode()),
    honest.map(lambda said: json.dumps(said).encode()),
    damaged(),
)


async def test_no_signed_body_breaks_the_server(
    besieged: Besieged, full: bool, findings: Findings
) -> None:
    """REC-6: nothing that a sender can put in a body may cause a 5xx."""
    number, heard = RANDOM_BODIES.at(full), Counter[int]()
    say = _speaker(besieged)

    @settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    @given(bodies)
    def deliver(body: bytes) -> None:
        (status,) = say(request(body, source="noise")).statuses
        heard[status] += 1
        assert status == 200 or status in REFUSALS, status

    async with besieged.attacked() as losses:
        await asyncio.to_thread(deliver)
    findings.add(Experiment.FUZZED, f"{heard.total():,} signed bodies", f"{_told(heard)}; {losses}")


methods = st.sampled_from(["POST", "GET", "PUT", "HEAD", "OPTIONS", "BREW", "post", "", "PRI"])
targets = st.one_of(
    st.sampled_from(
        ["/webhooks/noise", "/webhooks/", "/webhooks/health", "/webhooks/noise/test", "/metrics",
         "/api/v1/events?limit=-1", "/api/v1/users", "*", "//", "http://x/webhooks/noise"]
    ),
    st.text(st.characters(codec="latin-1"), max_size=60),
)  # fmt: skip
header_names = st.sampled_from(
    ["content-type", "content-encoding", "transfer-encoding", "content-length", "expect", "upgrade",
     "connection", "x-signature", "authorization", "x-forwarded-for", "host", "cookie", "range", ""]
) | st.text(st.characters(codec="latin-1"), max_size=30)  # fmt: skip
header_values = st.sampled_from(
    ["application/json", "chunked", "gzip", "identity", "0", "-1", "5", "99999999999999999999",
     "0x5", "100-continue", "websocket", "h2c", "close", "upgrade", "Bearer po_x", "1, 1", "\t", ""]
) | st.text(st.characters(codec="latin-1"), max_size=60)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is nearly one."""
    body = draw(st.binary(max_size=200) | damaged())
    headers = draw(st.lists(st.tuples(header_names, header_values), max_size=8))
    if draw(st.booleans()):
        headers.append(("content-length", str(len(body))))
    if draw(st.booleans()):
        headers.append(("x-signature", signature(body)))
    end = draw(st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r", "\0\r\n"]))
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTCPCP/1.0"]))
    lines = [f"{draw(methods)} {draw(targets)} {version}", *(f"{k}: {v}" for k, v in headers)]
    return end.join([*lines, "", ""]).encode("latin-1", "replace") + body


async def test_no_request_breaks_the_server(
    besieged: Besieged, full: bool, findings: Findings
) -> None:
    """REC-6 SEC-8: an answer below 500, or none."""
    number, heard = RANDOM_REQUESTS.at(full), Counter[str]()
    say = _speaker(besieged)

    @settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(requests(), st.lists(requests(), max_size=4).map(b"".join), st.binary()))
    def send(raw: bytes) -> None:
        statuses = say(raw).statuses
        heard.update(map(str, statuses) if statuses else ["no answer"])
        assert all(status < 500 for status in statuses), statuses

    async with besieged.attacked() as losses:
        await asyncio.to_thread(send)
    findings.add(Experiment.FUZZED, f"{number:,} requests", f"{_told(heard)}; {losses}")


def _speaker(besieged: Besieged) -> Callable[[bytes], Heard]:
    """Converses from another thread, where Hypothesis runs."""
    loop = asyncio.get_running_loop()

    def say(raw: bytes) -> Heard:
        return asyncio.run_coroutine_threadsafe(converse(besieged.service.port, raw), loop).result()

    return say


def _told(heard: Counter[Any]) -> str:
    return ", ".join(f"{times:,} × {status}" for status, times in sorted(heard.items(), key=str))
