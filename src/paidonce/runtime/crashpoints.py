"""Named points at which tests kill the process, to show that nothing is lost (REL-1).

`PAIDONCE_CRASH_AT=committed:3` kills the process, as the kernel would, when it passes that point
for the third time. Without the variable a point costs one comparison; in production the variable
is refused.
"""

import os
import signal
from enum import StrEnum

from paidonce.errors import ConfigurationError

VARIABLE = "PAIDONCE_CRASH_AT"


class CrashPoint(StrEnum):
    """The points, in the order in which an event passes them."""

    VERIFIED = "verified"  # a delivery is authentic; nothing is stored
    LOADED = "loaded"  # the rows of a batch are loaded
    WRITTEN = "written"  # the rows of a batch are written; its transaction is open
    COMMITTED = "committed"  # a batch of deliveries is committed; no response was sent
    ANSWERED = "answered"  # a response was written to the socket
    LOOKED_UP = "looked_up"  # a lookup has its answer; nothing of it is stored
    CLAIMED = "claimed"  # a worker has claimed due events; its transaction is open
    HOOKS_CALLED = "hooks_called"  # the user's handlers have run; the transaction is open
    WORKER_COMMITTED = "worker_committed"  # a worker's batch is committed; nothing is logged
    CREATED = "created"  # a user or order is inserted; events blocked on it are not processed
    REPLAYED = "replayed"  # a part of a replay is done and recorded; its transaction is open
    RESERVED = "reserved"  # money for a payout is reserved; nothing is committed
    CALLING = "calling"  # the gateway is about to be called; no transaction is open
    CALLED = "called"  # the gateway has answered; nothing of it is stored
    CALLBACK_APPLIED = "callback_applied"  # its answer is applied; the transaction is open
    ANSWER_SAVED = "answer_saved"  # its answer is committed
    NOTIFIED = "notified"  # a message has reached its channel; that is not recorded
    RELAY_READ = "relay_read"  # the relay has read messages for another bus than PostgreSQL
    PUBLISHED = "published"  # the bus has the messages; they are not marked as published
    FETCHED = "fetched"  # a consumer has fetched messages; its transaction is open
    CONSUMED = "consumed"  # their effect is written; the transaction is open
    CONSUMED_COMMITTED = "consumed_committed"  # it is committed, and not acknowledged
    ARCHIVE_WRITTEN = "archive_written"  # a month is in a temporary file
    ARCHIVE_NAMED = "archive_named"  # the file has its name, and no manifest
    ARCHIVED = "archived"  # it has its manifest; the month is still in the database


_armed: CrashPoint | None = None
_passings_left = 0


def maybe_crash(point: CrashPoint) -> None:
    """Kill the process if this point is armed and passed often enough."""
    global _passings_left  # noqa: PLW0603
    if point is _armed:
        _passings_left -= 1
        if _passings_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(environment: str) -> None:
    """Arm the point that the variable names. Raises ConfigurationError, also in production."""
    global _armed, _passings_left
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return
    if environment == "production":
        raise ConfigurationError(f"{VARIABLE} = {asked!r}: is refused in production; unset it")
    name, _, number = asked.partition(":")
    if name not in set(CrashPoint) or not number.isdecimal() or int(number) < 1:
        known = ", ".join(CrashPoint)
        raise ConfigurationError(
            f"{VARIABLE} = {asked!r}: give a point and a number, such as committed:1; "
            f"points are {known}"
        )
    _armed, _passings_left = CrashPoint(name), int(number)
