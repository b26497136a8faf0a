"""Whatever goes wrong in a call, as the answer that says so."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from uuid_utils.compat import uuid7

from paidonce.errors import PaidonceError
from paidonce.telemetry import logger
from paidonce.web.auth import ProblemError
from paidonce.web.problems import INTERNAL, Problem, problem_of

log = logger(__name__)


def add_to(api: FastAPI) -> None:
    """Answer errors of every kind."""
    kinds = (PaidonceError, ProblemError, RequestValidationError, HTTPException, Exception)
    for kind in kinds:
        api.add_exception_handler(kind, _on_error)


async def _on_error(request: Request, error: Exception) -> Response:
    request_id = str(uuid7())
    problem = _problem(error)
    if problem is INTERNAL:
        log.error("api_failed", request_id=request_id, path=request.url.path, exc_info=error)
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
            code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "REFUSED")
            return Problem(error.status_code, code, str(error.detail))
        case PaidonceError():
            return problem_of(error)
        case _:
            return INTERNAL


def _complaints(error: RequestValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or 'body'}: {one['msg']}"
        for one in error.errors()
    ]
