"""Every error that Paidonce raises by itself.

PaidonceError
├── ConfigurationError        the settings are wrong: names the key, the value and the remedy
├── EmbeddedDatabaseError     the embedded PostgreSQL cannot be started or stopped
├── DatabaseUnfitError        the database answers but cannot be used: version, clock, schema
├── DatabaseAwayError         the database cannot be reached now: try again later
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
├── InvalidMoneyError         an amount or currency that cannot be money
└── RequestError              an operator asked for something that cannot be done
    ├── NotFoundError
    ├── ConflictError
    └── InvalidRequestError

Errors know nothing of HTTP; `web/problems.py` maps them to statuses.
"""

from typing import ClassVar


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


class IntakeFullError(PaidonceError):
    """More deliveries wait than the intake may hold; the sender should try again."""


class RefusedError(PaidonceError):
    """A delivery is refused. The message is kept as evidence and must hold no secret."""

    code: ClassVar[str]


class InvalidSignatureError(RefusedError):
    """The delivery does not prove that it comes from the gateway."""

    code = "INVALID_SIGNATURE"


class TimestampExpiredError(RefusedError):
    """The delivery is authentic, but its own time is too far from the time of its arrival."""

    code = "TIMESTAMP_EXPIRED"


class ReplayedNonceError(RefusedError):
    """The delivery is authentic, but its nonce was used before, by one with another meaning."""

    code = "REPLAYED_NONCE"


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


class InvalidMoneyError(PaidonceError):
    """An amount or a currency that cannot be money. The message does not quote what was sent."""


class RequestError(PaidonceError):
    """An operator asked for something that cannot be done."""

    code: ClassVar[str] = "INVALID_REQUEST"


class NotFoundError(RequestError):
    """What the request names does not exist."""

    code = "NOT_FOUND"


class ConflictError(RequestError):
    """The request contradicts what is there already."""

    code = "CONFLICT"


class InvalidRequestError(RequestError):
    """The request itself makes no sense."""

    code = "INVALID_REQUEST"
