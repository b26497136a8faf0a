"""API keys on the operators' API."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from paidonce.operations import Actor, Operations, Scope
from paidonce.web.problems import Problem

_BEARER = HTTPBearer(auto_error=False, description="An API key: `po_…`")


class ProblemError(Exception):
    """An answer that is an error by HTTP's own rules, such as a missing key."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


def operations(request: Request) -> Operations:
    """The verbs, as the application was made with them."""
    verbs: Operations = request.app.state.operations
    return verbs


Verbs = Annotated[Operations, Depends(operations)]
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


class Needs:
    """Lets through who holds a key with at least this scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, verbs: Verbs, credentials: Credentials) -> Actor:
        actor = await verbs.authenticate(credentials.credentials) if credentials else None
        if actor is None:
            detail = "Send a valid API key: Authorization: Bearer po_…"
            raise ProblemError(Problem(401, "UNAUTHENTICATED", detail))
        if not actor.scope.includes(self.scope):
            detail = f"This key has scope {actor.scope}; {self.scope} is needed."
            raise ProblemError(Problem(403, "FORBIDDEN", detail))
        return actor


Reader = Annotated[Actor, Depends(Needs(Scope.READ))]
Operator = Annotated[Actor, Depends(Needs(Scope.OPERATE))]
