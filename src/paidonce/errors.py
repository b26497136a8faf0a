"""Every error that Paidonce raises by itself.

PaidonceError
├── ConfigurationError        the settings are wrong: names the key, the value and the remedy
├── EmbeddedDatabaseError     the embedded PostgreSQL cannot be started or stopped
├── DatabaseUnfitError        the database answers but cannot be used: version, clock, schema
├── DatabaseAwayError         the database cannot be reached now: try again later
├── BusAwayError              the bus cannot be reached now, or did not take what it was given
├── MessageRefusedError       a message of the bus cannot be taken, now or later
├── IntakeFullError           more deliveries wait than the intake may hold
├── RefusedError              a delivery is refused; `code` says why
│   ├── InvalidSignatureError
│   ├── TimestampExpiredError
│   ├── ReplayedNonceError
│   ├── NotApprovedError      the gateway asked for a confirmation that is not given
│   └── MalformedError
├── GatewayError              a gateway was asked what an event means
│   ├── GatewayUnreachableError   and does not answer, or does not know it yet
│   └── GatewayMismatchError      and contradicts the event
├── ArchiveError              a month of events cannot be archived, and is kept
├── NotTakenError             a channel did not take what people were to be told
├── HandlerError              a handler of the user's own says what is to become of its event
│   ├── Retry                     call me again later
│   └── Reject                    do not call me again
├── InvalidMoneyError         an amount or currency that cannot be money
└── RequestError              an operator asked for something that cannot be done
    ├── NotFoundError
    ├── ConflictError
    │   ├── StillRefusedError     a delivery that is processed again is refused again
    │   ├── ReservationRefusedError   a wallet cannot do it: no money, taken, let go, too late
    │   └── PaymentRefusedError       a payment out of a wallet cannot be started, or mended
    └── InvalidRequestError

Errors know nothing of HTTP; `web/problems.py` maps them to statuses.
"""

import re
from datetime import timedelta
from typing import ClassVar, Final

LONGEST_RETRY: Final = timedelta(days=30)
"""How far a handler may put off its next call."""
_OWN_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class PaidonceError(Exception):
    """The root of every error in this file."""


class ConfigurationError(PaidonceError):
    """The settings are wrong. The message names the key, the bad value and the remedy."""


class EmbeddedDatabaseError(PaidonceError):
    """The embedded PostgreSQL cannot be started or stopped."""


class DatabaseUnfitError(PaidonceError):
    """The database answers but cannot be used: too old, its clock is off, its schema is newer."""


class DatabaseAwayError(PaidonceError):
    """The database cannot be reached now; the sender should try again."""


class BusAwayError(PaidonceError):
    """The bus cannot be reached now, or did not take what it was given; it is tried again."""


class MessageRefusedError(PaidonceError):
    """A message of the bus cannot be taken, however often it comes: a person has to see it."""


class IntakeFullError(PaidonceError):
    """More deliveries wait than the intake may hold; the sender should try again."""


class RefusedError(PaidonceError):
    """A delivery is refused. The message is kept as evidence and must hold no secret."""

    code: ClassVar[str]
    is_authentic: bool = False
    """Whether the delivery was proven to come from the gateway all the same."""


class InvalidSignatureError(RefusedError):
    """The delivery does not prove that it comes from the gateway."""

    code = "INVALID_SIGNATURE"


class TimestampExpiredError(RefusedError):
    """The delivery is authentic, but its own time is too far from the time of its arrival."""

    code = "TIMESTAMP_EXPIRED"


class ReplayedNonceError(RefusedError):
    """The delivery is authentic, but its nonce was used before, by one with another meaning."""

    code = "REPLAYED_NONCE"
    is_authentic = True


class NotApprovedError(RefusedError):
    """The gateway asked whether to go on with a payment, and the answer is no."""

    code = "NOT_APPROVED"


class MalformedError(RefusedError):
    """The delivery is not what this source sends."""

    code = "MALFORMED"


class GatewayError(PaidonceError):
    """A gateway was asked what an event means. The message is kept and must hold no secret."""


class GatewayUnreachableError(GatewayError):
    """The gateway does not answer, or has not caught up with its own event: ask again later."""


class GatewayMismatchError(GatewayError):
    """The gateway contradicts the event. Asked again, it may not: `may_pass` says whether."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class ArchiveError(PaidonceError):
    """A month of events cannot be archived, and is kept. The message names the remedy."""


class NotTakenError(PaidonceError):
    """A channel did not take a message. The text is kept and must hold no secret."""


class HandlerError(PaidonceError):
    """A handler of the user's own does not do what it was called for."""


class Retry(HandlerError):  # noqa: N818 - a handler says it: `raise Retry(after=60)`
    """Raised by a handler: undo what I did, and call me again later.

    `after` is a time in seconds or a timedelta; without it the usual schedule counts.
    """

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message or "its handler asked to be called again")
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after
        if self.after is not None and not timedelta(0) <= self.after <= LONGEST_RETRY:
            raise ValueError(f"after: give a time from 0 to {LONGEST_RETRY.days} days")


class Reject(HandlerError):  # noqa: N818 - a handler says it: `raise Reject("SOLD_OUT")`
    """Raised by a handler: undo what I did, and let a person see it under this code.

    The code is a word of your own, in capital letters. The message is shown to operators.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or "its handler rejected it")
        if not _OWN_CODE.fullmatch(code):
            raise ValueError("code: use A-Z, 0-9 and _, a letter first, at most 64 of them")
        self.code = code


class InvalidMoneyError(PaidonceError):
    """An amount or a currency that cannot be money. The message does not quote what was sent."""


class RequestError(PaidonceError):
    """An operator asked for something that cannot be done."""

    code: str = "INVALID_REQUEST"


class NotFoundError(RequestError):
    """What the request names does not exist."""

    code = "NOT_FOUND"


class ConflictError(RequestError):
    """The request contradicts what is there already."""

    code = "CONFLICT"


class StillRefusedError(ConflictError):
    """A delivery that was refused is refused again; `code` says why, as it does on the event."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ReservationRefusedError(ConflictError):
    """A wallet cannot do what it is told; `code` says why, and nothing was changed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PaymentRefusedError(ConflictError):
    """A payment out of a wallet cannot be started, or mended; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(RequestError):
    """The request itself makes no sense."""

    code = "INVALID_REQUEST"
