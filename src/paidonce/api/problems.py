"""RFC 9457 problem details: the one place where errors become HTTP statuses."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import orjson

from paidonce.errors import (
    ConflictError,
    DatabaseUnavailableError,
    InvalidRequestError,
    InvalidSignatureError,
    MalformedError,
    NotApprovedError,
    NotFoundError,
    PaidonceError,
    QueueFullError,
    ReplayedNonceError,
    TimestampExpiredError,
)

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

    def body(self, request_id: str) -> bytes:
        return orjson.dumps(
            {
                "type": f"urn:paidonce:problem:{self.code.lower().replace('_', '-')}",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "code": self.code,
                "detail": self.detail,
                "request_id": request_id,
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


_INVALID_SIGNATURE: Final = Problem(401, "INVALID_SIGNATURE", "The signature does not match.")
_EXPIRED: Final = Problem(
    401, "TIMESTAMP_EXPIRED", "The timestamp of the delivery is too far from now."
)
_REPLAYED: Final = Problem(401, "REPLAYED_NONCE", "The nonce was used before.")
_UNAVAILABLE: Final = Problem(
    503, "UNAVAILABLE", "The delivery could not be stored; send it again.", RETRY_AFTER_S
)
_FULL: Final = Problem(
    503, "OVERLOADED", "Too many deliveries are waiting; send it again.", RETRY_AFTER_S
)
INTERNAL: Final = Problem(500, "INTERNAL", "Internal error.")


def problem_of(error: PaidonceError) -> Problem:
    """The problem of an error."""
    match error:
        case InvalidSignatureError():
            return _INVALID_SIGNATURE
        case TimestampExpiredError():
            return _EXPIRED
        case ReplayedNonceError():
            return _REPLAYED
        case NotApprovedError():
            return Problem(409, error.code, f"The payment is not approved: {error}.")
        case MalformedError():
            return Problem(400, error.code, f"The delivery was rejected: {error}.")
        case DatabaseUnavailableError():
            return _UNAVAILABLE
        case QueueFullError():
            return _FULL
        case NotFoundError():
            return Problem(404, error.code, f"{error}.")
        case ConflictError():
            return Problem(409, error.code, f"{error}.")
        case InvalidRequestError():
            return Problem(400, error.code, f"{error}.")
        case _:
            return INTERNAL


class ProblemError(Exception):
    """An error that is answered with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem
