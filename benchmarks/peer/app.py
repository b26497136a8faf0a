"""The FastAPI application: one endpoint, one transaction per request."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.peer.delivery import PROVIDER, Answer, Delivery, Trail, parse_delivery
from benchmarks.peer.models import Base
from benchmarks.peer.observability import log, observe, requests

Handler: TypeAlias = Callable[[Delivery, Trail], Awaitable[Answer]]
OpenHandler: TypeAlias = Callable[[AsyncEngine, bytes], Handler]

POOL_SIZE = 20
POOL_OVERFLOW = 20


def open_engine(url: str) -> AsyncEngine:
    """A pool on asyncpg; url is an ordinary postgresql:// one."""
    return create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://", 1),
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        json_serializer=lambda document: orjson.dumps(document).decode(),
        json_deserializer=orjson.loads,
    )


def create_app(open_handler: OpenHandler, *, url: str, secret: bytes) -> FastAPI:
    """The service on the database at url, for deliveries signed with secret."""
    engine = open_engine(url)
    handler = open_handler(engine, secret)
    app = FastAPI(title="Peer", lifespan=_lifespan(engine))

    @app.post("/webhooks/payments")
    async def receive(request: Request) -> Response:
        return await receive_delivery(request, handler)

    @app.get("/readyz")
    async def ready() -> Response:
        async with engine.connect() as db:
            await db.execute(text("SELECT 1"))
        return Response()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return app


async def receive_delivery(request: Request, handler: Handler) -> Response:
    """Steps 0, 1 and 6 around the transaction of the handler."""
    trail = Trail()
    raw = await request.body()
    try:
        delivery = parse_delivery(raw, request.headers.get("x-signature", ""))
    except ValueError:
        return _respond(Answer(400, "invalid_payload"))
    try:
        answer = await handler(delivery, trail)
    except (SQLAlchemyError, OSError) as error:
        log.error("webhook_failed", request_id=trail.request_id, error=repr(error))
        return _respond(Answer(500, "failed_retryable"))
    observe(delivery, answer, trail)
    return _respond(answer)


def _respond(answer: Answer) -> Response:
    requests.labels(PROVIDER, answer.http_code).inc()
    return JSONResponse({"status": answer.result}, status_code=answer.http_code)


def _lifespan(engine: AsyncEngine) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as db:
            await db.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    return lifespan
