"""Handlers that fail: what is told of it, who is notified, and what happens when they work again.

A handler that fails is often mended by the next version of the program. So events that wait for it
are tried for days, and all of them soon after it has worked again, in whatever process.
"""

import inspect
import traceback
from collections.abc import Collection
from typing import Any, Final

from paidonce.clock import CLOCK
from paidonce.core.input import storable
from paidonce.core.notifications import NotificationKind
from paidonce.core.problems import blocked_on_handler
from paidonce.db.queries import Connection, load_queries
from paidonce.hooks.registry import Handler, handler_name
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, clean
from paidonce.processing.items import MAX_MESSAGE, QueuedEvent, Rules
from paidonce.processing.store import blocked_on_digest
from paidonce.telemetry import logger, metrics

log = logger(__name__)

QUERIES: Final = load_queries(__file__)
NOTIFY_AFTER: Final = 3
"""How many failures of a handler cause a notification; with the schedule, a matter of seconds."""
NOTIFY_EVERY_S: Final = 3_600.0
RELEASE_EVERY_S: Final = 60.0
"""How often events are released: a handler may fail for some payments and work for others."""
MAX_RELEASED: Final = 10_000
RELEASED_PER_S: Final = 50.0
MAX_HANDLER_NAME: Final = 500


def describe(error: BaseException, handler: Handler) -> str:
    """The handler, its own line, and the type and message of the exception, in one line."""
    place = _own_line(error, handler)
    at = f" at {place}" if place else ""
    message = " ".join(str(error).split())
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"handler {handler_name(handler)} failed{at} with {told}"


def storable_message(text: str, rules: Rules) -> str:
    """A message as it is stored and shown: without secrets, and not too long."""
    return rules.masker.line(storable(text[: 4 * MAX_MESSAGE]))[:MAX_MESSAGE]


async def record_failure(
    connection: Connection, name: str, message: str, item: object, rules: Rules
) -> None:
    """Record that a handler failed. People are notified when it fails again and again.

    Waits for no other transaction: while one records a failure of this handler, others do not.
    """
    name = name[:MAX_HANDLER_NAME]
    metrics.bound(metrics.HANDLER_FAILURES, name).inc()
    row = await QUERIES["record_failure"].row(
        connection, handler=name, notify_after=NOTIFY_AFTER, notify_every_s=NOTIFY_EVERY_S
    )
    if row is None or not row["is_notified"]:
        return
    source = item.source.name if isinstance(item, QueuedEvent) else ""
    details = {
        "handler": name,
        "failures": row["failures"],
        "since": row["failing_since"].isoformat(timespec="seconds"),
        "message": message,
    }
    log.error("handler_failing", **details)
    notification = Notification(
        NotificationKind.HANDLER_FAILING,
        CLOCK.now(),
        source,
        item.event_id if isinstance(item, QueuedEvent) else None,
        details=clean(details),
    )
    await notifications_store.add(connection, rules.routes, notification)


async def release(connection: Connection, names: Collection[str]) -> None:
    """Make events due that wait for these handlers, which have just worked, one after the other."""
    digests = [blocked_on_digest(blocked_on_handler(name)) for name in names]
    rows = await QUERIES["release"].rows(
        connection,
        handler=[name[:MAX_HANDLER_NAME] for name in names],
        digest=digests,
        every_s=RELEASE_EVERY_S,
        limit=MAX_RELEASED,
        per_s=RELEASED_PER_S,
    )
    for row in rows:
        log.info("handler_works_again", handler=row["handler"], released=row["released"])


def _own_line(error: BaseException, handler: Handler) -> str | None:
    """The last line of the handler's own file that the exception went through."""
    frames = traceback.extract_tb(error.__traceback__)
    function: Any = inspect.unwrap(handler)
    if not hasattr(function, "__code__"):  # an object that is called
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    own = [one for one in frames if code is not None and one.filename == code.co_filename]
    if not own:
        return None
    return f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}"
