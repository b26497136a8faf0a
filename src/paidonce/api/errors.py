"""Turns errors of the HTTP API into problem details."""

from dataclasses import replace
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from paidonce.api.problems import INTERNAL, Problem, ProblemError, problem_of
from paidonce.core.masking import Masker
from paidonce.errors import PaidonceError
from paidonce.ids import new_id
from paidonce.telemetry import logger

log = logger(__name__)

MAX_DETAIL: Final = 2_000
"""The longest detail of a problem."""
_CODES: Final = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}


def add_to(api: FastAPI) -> None:
    """Add a handler for every kind of error."""
    kinds = (PaidonceError, ProblemError, RequestValidationError, HTTPException, Exception)
    for kind in kinds:
        api.add_exception_handler(kind, _on_error)


async def _on_error(request: Request, error: Exception) -> Response:
    request_id = str(new_id())
    problem = _problem(error)
    masker: Masker = request.app.state.masker
    problem = replace(problem, detail=masker.line(problem.detail)[:MAX_DETAIL])
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
