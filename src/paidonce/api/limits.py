"""Limits the size of request bodies while they are read (SEC-8)."""

from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send


class BodyLimit:
    """An ASGI application whose requests have a size."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = self._max_body_bytes

        async def receive_within() -> MutableMapping[str, Any]:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"A body may have {self._max_body_bytes} bytes at most.")
            return message

        await self._app(scope, receive_within, send)
