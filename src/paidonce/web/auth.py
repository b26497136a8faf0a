"""API keys on the operators' API."""

from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from paidonce.operations import Actor, Operations, Scope
from paidonce.web.guard import too_many
from paidonce.web.key_guard import KeyGuard
from paidonce.web.problems import Problem

_BEARER = HTTPBearer(auto_error=False, description="An API key: `po_…`")
_NO_KEY: Final = Problem(401, "UNAUTHENTICATED", "Send a valid API key: Authorization: Bearer po_…")


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


def refuse_repeated(request: Request) -> None:
    """Of a parameter that is given twice nobody can say which one is meant."""
    names = [name for name, _ in request.query_params.multi_items()]
    if len(set(names)) < len(names):
        raise ProblemError(Problem(400, "INVALID_REQUEST", "A parameter is given more than once."))


class Needs:
    """Lets through who holds a key with at least this scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request, verbs: Verbs, credentials: Credentials) -> Actor:
        refuse_repeated(request)
        if credentials is None:
            raise ProblemError(_NO_KEY)
        guard: KeyGuard = request.app.state.key_guard
        actor = await _authenticated(guard, guard.unit(request), verbs, credentials.credentials)
        if not actor.scope.includes(self.scope):
            detail = f"This key has scope {actor.scope}; {self.scope} is needed."
            raise ProblemError(Problem(403, "FORBIDDEN", detail))
        return actor


async def _authenticated(guard: KeyGuard, unit: str, verbs: Operations, key: str) -> Actor:
    """Who holds this key. Raises ProblemError, also when too many were tried from there."""
    over = guard.refusal(unit, key)
    if over is not None:
        raise ProblemError(too_many(over))
    actor = await verbs.authenticate(key)
    if actor is None:
        standing = guard.failed(unit)
        fields = () if standing is None else standing.fields()
        raise ProblemError(replace(_NO_KEY, fields=fields))
    guard.passed(unit, key)
    return actor


Reader = Annotated[Actor, Depends(Needs(Scope.READ))]
Operator = Annotated[Actor, Depends(Needs(Scope.OPERATE))]
Admin = Annotated[Actor, Depends(Needs(Scope.ADMIN))]
