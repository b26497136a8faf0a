"""Named moments at which a test ends the process, to see that nothing is lost there (REL-1).

`PAIDONCE_CRASH_AT=committed:3` kills the process, as the kernel would, when it passes that moment
for the third time. Without the variable a moment costs one comparison; in production the variable
is refused.
"""

import os
import signal
from enum import StrEnum

from paidonce.errors import ConfigurationError

VARIABLE = "PAIDONCE_CRASH_AT"


class Point(StrEnum):
    """The moments, in the order in which an event passes them."""

    VERIFIED = "verified"  # a delivery is authentic; nothing is stored
    LOADED = "loaded"  # what a batch touches has been read, or locked
    WRITTEN = "written"  # all rows of a batch are written; its transaction is open
    COMMITTED = "committed"  # a batch of deliveries is committed; nobody has been answered
    ANSWERED = "answered"  # an answer has been given to the socket
    ASKED = "asked"  # a gateway has said what an event means; nothing of that is stored
    CLAIMED = "claimed"  # a worker has taken what is due; its transaction is open
    HANDLED = "handled"  # the user's own handlers have run; the transaction is open
    WORKED = "worked"  # a worker's batch is committed; nothing is logged
    CREATED = "created"  # a user is added; what waits for it is not settled
    REPLAYED = "replayed"  # a part of a replay is done and written down; its transaction is open
    RESERVED = "reserved"  # money is set aside for a payment out of a wallet; nothing is committed
    CALLING = "calling"  # its gateway is about to be called; nothing is open
    CALLED = "called"  # its gateway has answered; nothing of that is stored
    HEARD = "heard"  # what the gateway said has been applied; the transaction is open
    ANSWER_SAVED = "answer_saved"  # what it answered is committed
    TOLD = "told"  # a message has reached its channel; that is not recorded
    RELAY_READ = "relay_read"  # the relay has read what another bus than PostgreSQL is to get
    PUBLISHED = "published"  # the bus has it; it is not marked as published
    FETCHED = "fetched"  # a consumer has messages in hand; its transaction is open
    TAKEN = "taken"  # their effect is written; the transaction is open
    TAKEN_FOR_GOOD = "taken_for_good"  # it is committed; the bus has not been told
    ARCHIVE_WRITTEN = "archive_written"  # a month is in a file that has no name yet
    ARCHIVE_NAMED = "archive_named"  # it has its name, and no manifest
    ARCHIVED = "archived"  # it has its manifest; the month is still there


_armed: Point | None = None
_passings_left = 0


def passing(point: Point) -> None:
    """The process is at this moment, and ends here if that was asked for."""
    if point is _armed:
        _count_down()


def arm(environment: str) -> None:
    """Do as the variable says. Raises ConfigurationError, also in production."""
    global _armed, _passings_left
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return
    if environment == "production":
        raise ConfigurationError(f"{VARIABLE} = {asked!r}: is refused in production; unset it")
    name, _, number = asked.partition(":")
    if name not in set(Point) or not number.isdecimal() or int(number) < 1:
        known = ", ".join(Point)
        raise ConfigurationError(
            f"{VARIABLE} = {asked!r}: give a moment and a number, such as committed:1; "
            f"moments are {known}"
        )
    _armed, _passings_left = Point(name), int(number)


def _count_down() -> None:
    global _passings_left  # noqa: PLW0603
    _passings_left -= 1
    if _passings_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
