"""Requests to the HTTP API: the scope that a call needs, queries, and the size of a body."""

from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any, Final, Protocol, TypeVar

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from paidonce.api.problems import Problem, ProblemError
from paidonce.core.actors import Actor, Scope
from paidonce.errors import did_you_mean

_BEARER = HTTPBearer(auto_error=False, description="An API key: `po_…`")
NO_KEY: Final = Problem(401, "UNAUTHENTICATED", "Send a valid API key: Authorization: Bearer po_…")


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, request: Request, key: str) -> Actor:
        """The owner of the key. Raises ProblemError."""
        ...


class Needs:
    """A dependency that lets a request pass if its key has at least this scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Actor:
        reject_repeated_parameters(request)
        if credentials is None:
            raise ProblemError(NO_KEY)
        authenticator: Authenticator = request.app.state.authenticator
        actor = await authenticator.authenticate(request, credentials.credentials)
        if not actor.scope.includes(self.scope):
            detail = f"This key has scope {actor.scope}; {self.scope} is needed."
            raise ProblemError(Problem(403, "FORBIDDEN", detail))
        reject_unknown_parameters(request)
        return actor


def reject_repeated_parameters(request: Request) -> None:
    """Refuse a query parameter that is given twice: it is not clear which one is meant."""
    names = [name for name, _ in request.query_params.multi_items()]
    if len(set(names)) < len(names):
        raise ProblemError(Problem(400, "INVALID_REQUEST", "A parameter is given more than once."))


def reject_unknown_parameters(request: Request) -> None:
    """Refuse a query parameter that the call does not have: a filter that is misspelt, perhaps."""
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    known = frozenset(query_parameters(route.dependant))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none"
        hint = did_you_mean(unknown[0], known) or "."
        detail = f"{unknown[0]}: this call has no such query parameter; {there_are}{hint}"
        raise ProblemError(Problem(400, "INVALID_REQUEST", detail))


def query_parameters(dependant: Dependant) -> Iterator[str]:
    """The names of the query parameters of a call; a query is one for each of its fields."""
    for one in dependant.query_params:
        kind = one.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from kind.model_fields
        else:
            yield one.alias
    for dependency in dependant.dependencies:
        yield from query_parameters(dependency)


Reader = Annotated[Actor, Depends(Needs(Scope.READ))]
Operator = Annotated[Actor, Depends(Needs(Scope.OPERATE))]
Admin = Annotated[Actor, Depends(Needs(Scope.ADMIN))]

T = TypeVar("T")
FromQuery = Annotated[T, Query()]
"""A model whose fields are query parameters."""


class BodyLimit:
    """Limits the size of request bodies while they are read (SEC-8)."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        left = self._max_body_bytes

        async def receive_within() -> MutableMapping[str, Any]:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"A body may have {self._max_body_bytes} bytes at most.")
            return message

        await self._app(scope, receive_within, send)
