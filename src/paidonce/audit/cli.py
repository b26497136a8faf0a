"""`paidonce audit`, and how a trail is printed."""

from collections.abc import Iterable
from typing import Any, Final

from paidonce.audit.model import AuditQuery, TrailItem
from paidonce.db.paging import all_pages
from paidonce.terminal.commands import Json, Limit, query_options
from paidonce.terminal.output import columns, print_table, rfc3339, show
from paidonce.terminal.session import Config, Use, operate


def _details(item: TrailItem) -> str:
    return ", ".join(f"{name}={value}" for name, value in item.details.items())


_COMPUTED: Final[dict[str, Any]] = {
    "at": lambda item: rfc3339(item.at, "milliseconds"),
    "details": _details,
}
_COLUMNS: Final = columns(
    "at, actor, action, success, payment_id as payment, order, user_id as user, "
    "event_id as event, reason, details",
    **_COMPUTED,
)
_TRAIL: Final = columns("at, actor, action, success, reason, details", **_COMPUTED)


@query_options
def audit(query: AuditQuery, limit: Limit = 50, config: Config = None, json: Json = False) -> None:
    """List the audit log, newest first: who did what, when and why."""
    found = operate(
        config, lambda services: all_pages(services.audit.search, query, limit), Use.STORED
    )
    show(found, json, _COLUMNS)


def print_trail(trail: Iterable[TrailItem]) -> None:
    """Print what was done to something."""
    print_table(trail, _TRAIL)
