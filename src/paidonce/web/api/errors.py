"""Whatever goes wrong in a call, as the answer that says so."""

from dataclasses import replace
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from uuid_utils.compat import uuid7

from paidonce.errors import PaidonceError
from paidonce.operations import Operations
from paidonce.telemetry import logger
from paidonce.web.auth import ProblemError
from paidonce.web.problems import INTERNAL, Problem, problem_of

log = logger(__name__)

MAX_DETAIL: Final = 2_000
"""How much is told of what is wrong with a request."""
_CODES: Final = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}


def add_to(api: FastAPI) -> None:
    """Answer errors of every kind."""
    kinds = (PaidonceError, ProblemError, RequestValidationError, HTTPException, Exception)
    for kind in kinds:
        api.add_exception_handler(kind, _on_error)


async def _on_error(request: Request, error: Exception) -> Response:
    request_id = str(uuid7())
    problem = _problem(error)
    verbs: Operations = request.app.state.operations
    problem = replace(problem, detail=verbs.masked(problem.detail)[:MAX_DETAIL])
    if problem.status == INTERNAL.status:
        route = request.scope.get("route")
        call = f"{request.method} {getattr(route, 'path', None)}"
        log.error("api_failed", request_id=request_id, call=call, exc_info=error)
    headers = problem.headers() | {"x-request-id": request_id}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(problem.body(request_id), problem.status, headers)


def _problem(error: Exception) -> Problem:
    match error:
        case ProblemError():
            return error.problem
        case RequestValidationError():
            return Problem(400, "INVALID_REQUEST", "; ".join(_complaints(error)))
        case HTTPException():
            code = _CODES.get(error.status_code, "REFUSED")
            allow = (error.headers or {}).get("allow")
            return Problem(error.status_code, code, str(error.detail), allow=allow)
        case PaidonceError():
            return problem_of(error)
        case _:
            return INTERNAL


def _complaints(error: RequestValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or 'body'}: {one['msg']}"
        for one in error.errors()
    ]
