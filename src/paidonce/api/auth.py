"""Authentication of the HTTP API: which scope a call needs."""

from typing import Annotated, Final, Protocol

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from paidonce.api.problems import Problem, ProblemError
from paidonce.core.actors import Actor, Scope

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
        return actor


def reject_repeated_parameters(request: Request) -> None:
    """Refuse a query parameter that is given twice: it is not clear which one is meant."""
    names = [name for name, _ in request.query_params.multi_items()]
    if len(set(names)) < len(names):
        raise ProblemError(Problem(400, "INVALID_REQUEST", "A parameter is given more than once."))


Reader = Annotated[Actor, Depends(Needs(Scope.READ))]
Operator = Annotated[Actor, Depends(Needs(Scope.OPERATE))]
Admin = Annotated[Actor, Depends(Needs(Scope.ADMIN))]
