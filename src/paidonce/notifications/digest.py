"""Composes messages: the number of notifications by kind and source, and the newest of each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from paidonce.core.notifications import NotificationKind
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
    NotificationKind.RECEIVABLE: ("uncovered refund", "uncovered refunds"),
    NotificationKind.FAILED: ("failed event", "failed events"),
    NotificationKind.BAN: ("banned address", "banned addresses"),
    NotificationKind.EVIDENCE: ("full room for evidence", "full rooms for evidence"),
    NotificationKind.WALLET_PAYMENT: ("payout in review", "payouts in review"),
    NotificationKind.CALLBACK: ("callback without a payout", "callbacks without a payout"),
    NotificationKind.FINDING: ("reconciliation finding", "reconciliation findings"),
    NotificationKind.BUS_DEAD_LETTER: ("message not consumed", "messages not consumed"),
    NotificationKind.BUS_LOSS: ("loss of messages", "losses of messages"),
}


def compose(notifications: Sequence[PendingNotification]) -> dict[str, Any]:
    """The content of a message with these notifications, which are sorted by time."""
    kind_and_source = attrgetter("kind", "source")
    by_group = sorted(notifications, key=kind_and_source)  # stable: keeps the order within a group
    groups = [_group(list(members)) for _, members in groupby(by_group, key=kind_and_source)]
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


def render_text(content: Content, max_characters: int) -> str:
    """The content as text: a line for each group and each notification that is shown."""
    lines: list[str] = []
    room = max_characters - len(_CUT)
    for line in _lines(content):
        room -= len(line) + 1
        if room < 0:
            lines.append(_CUT)
            break
        lines.append(line)
    return "\n".join(lines)


_CUT: Final = "… cut off: the message is too long."


def _group(members: list[PendingNotification]) -> dict[str, Any]:
    first = members[0]
    return {
        "kind": first.kind,
        "source": first.source or None,
        "count": len(members) + sum(one.suppressed for one in members),
        "first_at": _time(min(one.at for one in members)),
        "last_at": _time(max(one.at for one in members)),
        "newest": [_item(one) for one in reversed(members[-MAX_SHOWN:])],
    }


def _item(one: PendingNotification) -> dict[str, Any]:
    ids = {"event": one.event_id, "payment": one.payment_id}
    details = list(one.details.items())[:MAX_DETAILS]
    return {
        "at": _time(one.at),
        **{f"{name}_id": id_ and str(id_) for name, id_ in ids.items()},
        # Each in one line, so that none can look like another one.
        "details": {name: " ".join(str(value).split())[:MAX_DETAIL] for name, value in details},
        "links": {name: f"/api/v1/{name}s/{id_}" for name, id_ in ids.items() if id_},
    }


def _counts(groups: Iterable[Mapping[str, Any]]) -> str:
    numbers: Counter[str] = Counter()
    for group in groups:
        numbers[group["kind"]] += group["count"]
    return ", ".join(_counted(kind, number) for kind, number in numbers.items())


def _counted(kind: str, number: int) -> str:
    one, many = _NAMES.get(kind, (kind, kind))
    return f"{number} {one if number == 1 else many}"


def _lines(content: Content) -> Iterator[str]:
    yield content["subject"]
    for group in content["groups"]:
        of_source = f" of {group['source']}" if group["source"] else ""
        yield ""
        yield f"{_counted(group['kind'], group['count'])}{of_source}, newest first:"
        yield from (_line(item) for item in group["newest"])
        unshown = group["count"] - len(group["newest"])
        if unshown > 0:
            yield f"- … and {unshown} more"
    if content["left_out"]:
        yield ""
        yield f"… and {content['left_out']} of other kinds and sources"


def _line(item: Mapping[str, Any]) -> str:
    details = dict(item["details"])
    amount = " ".join(filter(None, (details.pop("amount", None), details.pop("currency", None))))
    message = details.pop("message", None)
    parts = [item["at"], details.pop("code", None), amount]
    parts += [f"{name} {value}" for name, value in details.items()]
    parts += [message, *item["links"].values()]
    return "- " + ", ".join(str(one) for one in parts if one)


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
