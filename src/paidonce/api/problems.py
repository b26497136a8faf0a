"""RFC 9457 problem details: the one place where errors become HTTP statuses."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import orjson

from paidonce import errors

CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """An error response. It reveals nothing about the inside."""

    status: int
    code: str
    detail: str
    retry_after_s: int | None = None
    allow: str | None = None
    fields: tuple[tuple[str, str], ...] = ()

    def body(self, request_id: str, **others: object) -> bytes:
        """The problem as JSON, with these fields added."""
        return orjson.dumps(
            {
                "type": f"urn:paidonce:problem:{self.code.lower().replace('_', '-')}",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "code": self.code,
                "detail": self.detail,
                "request_id": request_id,
                **others,
            }
        )

    def headers(self) -> dict[str, str]:
        """The headers of the response."""
        added = {"content-type": CONTENT_TYPE, **dict(self.fields)}
        if self.retry_after_s is not None:
            added["retry-after"] = str(self.retry_after_s)
        if self.allow is not None:
            added["allow"] = self.allow
        return added


INTERNAL: Final = Problem(500, "INTERNAL", "Internal error.")


def problem_of(error: errors.PaidonceError) -> Problem:
    """The problem of an error."""
    match error:
        case errors.InvalidSignatureError():
            return Problem(401, error.code, "The signature does not match.")
        case errors.TimestampExpiredError():
            return Problem(401, error.code, "The timestamp of the delivery is too far from now.")
        case errors.ReplayedNonceError():
            return Problem(401, error.code, "The nonce was used before.")
        case errors.NotApprovedError():
            return Problem(409, error.code, f"The payment is not approved: {error}.")
        case errors.MalformedError():
            return Problem(400, error.code, f"The delivery was rejected: {error}.")
        case errors.DatabaseUnavailableError():
            detail = "The delivery could not be stored; send it again."
            return Problem(503, "UNAVAILABLE", detail, RETRY_AFTER_S)
        case errors.QueueFullError():
            detail = "Too many deliveries are waiting; send it again."
            return Problem(503, "OVERLOADED", detail, RETRY_AFTER_S)
        case errors.NotFoundError():
            return Problem(404, error.code, f"{error}.")
        case errors.ConflictError():
            return Problem(409, error.code, f"{error}.")
        case errors.UnprocessableRequestError():
            return Problem(422, error.code, f"{error}.")
        case errors.InvalidRequestError():
            return Problem(400, error.code, f"{error}.")
        case _:
            return INTERNAL


class ProblemError(Exception):
    """An error that is answered with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem
