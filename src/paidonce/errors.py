"""Every error that Paidonce raises itself.

Errors do not depend on HTTP; `api/problems.py` maps them to statuses.
"""

import difflib
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar, Final

LONGEST_RETRY: Final = timedelta(days=30)  # until the next call of a handler
_OWN_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


LONGEST_NAME: Final = 100
"""Longer names are not compared with those that exist."""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of an error about a wrong name: the name that was meant, if one is similar."""
    similar = difflib.get_close_matches(wrong[:LONGEST_NAME], known, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def meant_value(wrong: object, expected: object) -> str:
    """The same for a value, with pydantic's list of what it expected."""
    if not isinstance(wrong, str) or not isinstance(expected, str):
        return ""
    return did_you_mean(wrong, re.findall(r"'([^']*)'", expected))


class PaidonceError(Exception):
    """The root of every error in this file."""


class ConfigurationError(PaidonceError):
    """The settings are wrong. The message names the key, the bad value and the remedy."""


class EmbeddedDatabaseError(PaidonceError):
    """The embedded PostgreSQL cannot be started or stopped."""


class UnsupportedDatabaseError(PaidonceError):
    """The database cannot be used: its version, clock or schema does not fit."""


class DatabaseUnavailableError(PaidonceError):
    """The database cannot be reached now; the sender should try again."""


class BusUnavailableError(PaidonceError):
    """The bus cannot be reached now, or did not accept a message; it is tried again."""


class InvalidMessageError(PaidonceError):
    """A message of the bus can never be consumed: it becomes a dead letter."""


class QueueFullError(PaidonceError):
    """Too many deliveries are waiting; the sender should try again."""


class SenderQueueFullError(QueueFullError):
    """Too many unsigned deliveries of this sender wait for a lookup."""


class RejectedError(PaidonceError):
    """A delivery is rejected. The message is stored and must hold no secret."""

    code: ClassVar[str]
    is_authentic: bool = False
    """Whether the delivery is proven to come from the gateway."""


class InvalidSignatureError(RejectedError):
    """The delivery does not prove that it comes from the gateway."""

    code = "INVALID_SIGNATURE"


class TimestampExpiredError(RejectedError):
    """The delivery is authentic, but its timestamp is too far from its arrival."""

    code = "TIMESTAMP_EXPIRED"


class ReplayedNonceError(RejectedError):
    """The delivery is authentic, but its nonce was used by a different delivery."""

    code = "REPLAYED_NONCE"
    is_authentic = True


class NotApprovedError(RejectedError):
    """The gateway asked for a confirmation of a payment, and it is not approved."""

    code = "NOT_APPROVED"


class MalformedError(RejectedError):
    """The delivery is not what this source sends."""

    code = "MALFORMED"


class GatewayError(PaidonceError):
    """A lookup at the gateway failed. The message is stored and must hold no secret."""

    may_pass = False  # whether a later lookup may succeed


class GatewayUnreachableError(GatewayError):
    """The gateway does not answer, or does not know the payment yet: look it up again later."""

    may_pass = True


class GatewayMismatchError(GatewayError):
    """The gateway contradicts the event."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class ArchiveError(PaidonceError):
    """A partition cannot be archived, and is kept. The message names the remedy."""


class NotificationSendError(PaidonceError):
    """A channel did not accept a message. The text is stored, and must contain no secret."""


class HandlerError(PaidonceError):
    """A user's handler did not complete."""


class Retry(HandlerError):  # noqa: N818 - a handler says it: `raise Retry(after=60)`
    """Raised by a handler: roll back, and call me again later.

    `after` is a number of seconds or a timedelta; the default is the usual schedule.
    """

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message or "its handler asked to be called again")
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after
        if self.after is not None and not timedelta(0) <= self.after <= LONGEST_RETRY:
            raise ValueError(f"after: give a time from 0 to {LONGEST_RETRY.days} days")


class Reject(HandlerError):  # noqa: N818 - a handler says it: `raise Reject("SOLD_OUT")`
    """Raised by a handler: roll back, and let an operator decide.

    The code is your own, in capital letters. The message is shown to operators.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or "its handler rejected it")
        if not _OWN_CODE.fullmatch(code):
            raise ValueError("code: use A-Z, 0-9 and _, a letter first, at most 64 of them")
        self.code = code


class InvalidMoneyError(PaidonceError):
    """An amount or a currency is not valid. The message does not quote the input."""


class RequestError(PaidonceError):
    """An operator asked for something that cannot be done."""

    code: str = "INVALID_REQUEST"


class NotFoundError(RequestError):
    """The requested object does not exist."""

    code = "NOT_FOUND"


class ConflictError(RequestError):
    """The request conflicts with the current state. `code` may say why."""

    def __init__(self, message: str, code: str = "CONFLICT") -> None:
        super().__init__(message)
        self.code = code


class UnprocessableRequestError(RequestError):
    """The request is valid, but what is known does not allow it. `code` says why."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(RequestError):
    """The request is not valid."""
