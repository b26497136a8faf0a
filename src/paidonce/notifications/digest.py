"""Composes messages: the number of notifications by kind and source, and the newest of each."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from paidonce.core.notifications import NotificationKind
from paidonce.core.printable import printable
from paidonce.notifications.model import Content, PendingNotification

MAX_GROUPS: Final = 20
MAX_SHOWN: Final = 5
"""How many notifications of one kind and source are shown; the others are counted."""
MAX_DETAILS: Final = 12
MAX_DETAIL: Final = 300

_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    NotificationKind.DEAD_LETTER: ("dead letter", "dead letters"),
    NotificationKind.CONFLICT: ("conflict", "conflicts"),
    NotificationKind.MISMATCH: ("wrong amount", "wrong amounts"),
    NotificationKind.DUPLICATE_PAYMENT: ("duplicate payment", "duplicate payments"),
    NotificationKind.LINK_CONFLICT: ("link conflict", "link conflicts"),
    NotificationKind.ORDER_CLOSED: ("payment for a closed order", "payments for closed orders"),
    NotificationKind.PAYMENT_MISSING: ("refund without a payment", "refunds without a payment"),
    NotificationKind.PROVIDER_MISMATCH: (
        "contradiction by the gateway",
        "contradictions by the gateway",
    ),
    NotificationKind.EXPIRED: ("expired delivery", "expired deliveries"),
    NotificationKind.DISPUTE: ("dispute", "disputes"),
    NotificationKind.UNAPPLIED: ("waiting payment", "waiting payments"),
    NotificationKind.RECEIVABLE: ("uncovered refund", "uncovered refunds"),
    NotificationKind.FAILED: ("failed event", "failed events"),
    NotificationKind.HANDLER_FAILING: ("failing handler", "failing handlers"),
    NotificationKind.SIGNATURES: (
        "source with wrong signatures",
        "sources with wrong signatures",
    ),
    NotificationKind.BAN: ("banned address", "banned addresses"),
    NotificationKind.EVIDENCE: ("full room for evidence", "full rooms for evidence"),
    NotificationKind.WALLET_PAYMENT: ("payout in review", "payouts in review"),
    NotificationKind.CALLBACK: ("callback without a payout", "callbacks without a payout"),
    NotificationKind.FINDING: ("reconciliation finding", "reconciliation findings"),
    NotificationKind.BUS_DEAD_LETTER: ("message not consumed", "messages not consumed"),
    NotificationKind.BUS_LOSS: ("loss of messages", "losses of messages"),
}


PAGES: Final[Mapping[str, str]] = {}
"""The pages for people, by what they show, such as `/dashboard/payments/{id}`. Only pages that are
served: a link to nowhere is worse than none."""
_COMMANDS: Final = {"payment": "paidonce payments show {id}", "event": "paidonce events show {id}"}
_API: Final = {"payment": "/api/v1/payments/{id}", "event": "/api/v1/events/{id}"}

Quote = Callable[[str], str]
"""Writes text from outside such that a channel's reader shows it and does not interpret it."""


def compose(
    notifications: Sequence[PendingNotification], public_url: str | None = None
) -> dict[str, Any]:
    """The content of a message with these notifications, which are sorted by time.

    With the address of the service, it has links to pages.
    """
    kind_and_source = attrgetter("kind", "source")
    by_group = sorted(notifications, key=kind_and_source)  # stable: keeps the order within a group
    base = (public_url or "").rstrip("/")
    groups = [_group(list(members), base) for _, members in groupby(by_group, key=kind_and_source)]
    order = {kind.value: number for number, kind in enumerate(NotificationKind)}
    groups.sort(key=lambda group: (order.get(group["kind"], len(order)), -group["count"]))
    return {
        "subject": f"Paidonce: {_counts(groups)}",
        "total": sum(group["count"] for group in groups),
        "groups": groups[:MAX_GROUPS],
        "left_out": sum(group["count"] for group in groups[MAX_GROUPS:]),
    }


def compose_test(channel: str) -> Content:
    """The content of a test message."""
    return compose([]) | {"subject": f"Paidonce: this is a test of the channel {channel}"}


def render_text(content: Content, max_characters: int, quote: Quote = str) -> str:
    """The content as text: a line for each group and each notification that is shown."""
    lines: list[str] = []
    room = max_characters - len(_CUT)
    for line in _lines(content, quote):
        room -= len(line) + 1
        if room < 0:
            lines.append(_CUT)
            break
        lines.append(line)
    return "\n".join(lines)


_CUT: Final = "… cut off: the message is too long."


def _group(members: list[PendingNotification], base: str) -> dict[str, Any]:
    first = members[0]
    return {
        "kind": first.kind,
        "source": first.source or None,
        "count": len(members) + sum(one.suppressed for one in members),
        "first_at": _time(min(one.at for one in members)),
        "last_at": _time(max(one.at for one in members)),
        "newest": [_item(one, base) for one in reversed(members[-MAX_SHOWN:])],
    }


def _item(one: PendingNotification, base: str) -> dict[str, Any]:
    ids = {"event": one.event_id, "payment": one.payment_id}
    known = {name: str(id_) for name, id_ in ids.items() if id_}
    details = list(one.details.items())[:MAX_DETAILS]
    return {
        "at": _time(one.at),
        **{f"{name}_id": id_ and str(id_) for name, id_ in ids.items()},
        # Each in one line, so that none can look like another one.
        "details": {name: _one_line(value) for name, value in details},
        "links": _filled(PAGES, known, base) if base else {},
        "commands": _filled(_COMMANDS, known),
        "api": _filled(_API, known, base),
    }


def _one_line(value: object) -> str:
    return printable(" ".join(str(value).split()))[:MAX_DETAIL]


def _filled(templates: Mapping[str, str], ids: Mapping[str, str], base: str = "") -> dict[str, str]:
    return {
        name: base + templates[name].format(id=id_)
        for name, id_ in ids.items()
        if name in templates
    }


def _counts(groups: Iterable[Mapping[str, Any]]) -> str:
    numbers: Counter[str] = Counter()
    for group in groups:
        numbers[group["kind"]] += group["count"]
    return ", ".join(_counted(kind, number) for kind, number in numbers.items())


def _counted(kind: str, number: int) -> str:
    one, many = _NAMES.get(kind, (kind, kind))
    return f"{number} {one if number == 1 else many}"


def _lines(content: Content, quote: Quote) -> Iterator[str]:
    yield content["subject"]
    for group in content["groups"]:
        of_source = f" of {group['source']}" if group["source"] else ""
        yield ""
        yield f"{_counted(group['kind'], group['count'])}{of_source}, newest first:"
        yield from (_line(item, quote) for item in group["newest"])
        unshown = group["count"] - len(group["newest"])
        if unshown > 0:
            yield f"- … and {unshown} more"
    if content["left_out"]:
        yield ""
        yield f"… and {content['left_out']} of other kinds and sources"


def _line(item: Mapping[str, Any], quote: Quote) -> str:
    details = dict(item["details"])
    amount = " ".join(filter(None, (details.pop("amount", None), details.pop("currency", None))))
    message = details.pop("message", None)
    parts = [item["at"], details.pop("code", None), amount]
    parts += [f"{name} {value}" for name, value in details.items()]
    parts.append(message)
    ways = item["links"] or item["commands"]
    text = quote(", ".join(str(one) for one in parts if one))
    return "- " + ", ".join([text, *ways.values()])


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
