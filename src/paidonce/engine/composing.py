"""From notices to a message: how many of what, and the newest of each, in a bounded size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from paidonce.domain.notices import NoticeKind
from paidonce.store.notices import Told

MAX_GROUPS: Final = 20
MAX_SHOWN: Final = 5
"""How many notices of one kind and source are shown; the others are counted."""
MAX_DETAILS: Final = 12
MAX_DETAIL: Final = 300

Content = Mapping[str, Any]
"""What a message says, as JSON: it is kept so, and sent so to webhooks."""

_NAMES: Final = {
    NoticeKind.DEAD_LETTER: ("dead letter", "dead letters"),
    NoticeKind.CONFLICT: ("conflict", "conflicts"),
    NoticeKind.MISMATCH: ("wrong amount", "wrong amounts"),
    NoticeKind.DUPLICATE_PAYMENT: ("duplicate payment", "duplicate payments"),
    NoticeKind.LINK_CONFLICT: ("contested payment", "contested payments"),
    NoticeKind.ORDER_CLOSED: ("payment for a closed order", "payments for closed orders"),
    NoticeKind.PAYMENT_MISSING: ("refund without a payment", "refunds without a payment"),
    NoticeKind.PROVIDER_MISMATCH: ("contradiction by the gateway", "contradictions by the gateway"),
    NoticeKind.STALE: ("stale delivery", "stale deliveries"),
    NoticeKind.RECEIVABLE: ("uncovered refund", "uncovered refunds"),
    NoticeKind.FAILED: ("failed event", "failed events"),
    NoticeKind.BAN: ("banned address", "banned addresses"),
    NoticeKind.WALLET_PAYMENT: ("payment out of a wallet", "payments out of wallets"),
    NoticeKind.CALLBACK: ("callback without a payment", "callbacks without a payment"),
    NoticeKind.FINDING: ("finding of a reconciliation", "findings of reconciliations"),
    NoticeKind.BUS_DEAD_LETTER: ("message not taken", "messages not taken"),
    NoticeKind.BUS_LOSS: ("loss of messages", "losses of messages"),
}


def composed(notices: Sequence[Told]) -> Content:
    """What is said of these notices, which are in the order in which they came."""
    by_group = sorted(notices, key=_group_of)  # stable: within a group the order stays
    groups = [_group(list(members)) for _, members in groupby(by_group, key=_group_of)]
    groups.sort(key=lambda group: (_order(group["kind"]), -group["count"], group["source"]))
    return {
        "subject": f"Paidonce: {_counts(groups)}",
        "total": sum(group["count"] for group in groups),
        "groups": groups[:MAX_GROUPS],
        "left_out": sum(group["count"] for group in groups[MAX_GROUPS:]),
    }


def trial_content(channel: str) -> Content:
    """What is said to find out whether a channel works."""
    return {
        "subject": f"Paidonce: this is a test of the channel {channel}",
        "total": 0,
        "groups": [],
        "left_out": 0,
    }


def text_of(content: Content, max_characters: int) -> str:
    """The same for people: a line for each group and each notice that is shown."""
    lines: list[str] = []
    room = max_characters - len(_CUT)
    for line in _lines(content):
        room -= len(line) + 1
        if room < 0:
            lines.append(_CUT)
            break
        lines.append(line)
    return "\n".join(lines)


_CUT: Final = "… the rest does not fit here."


def _group_of(notice: Told) -> tuple[str, str]:
    return notice.kind, notice.source


def _group(members: list[Told]) -> dict[str, Any]:
    first = members[0]
    return {
        "kind": first.kind,
        "source": first.source or None,
        "count": len(members) + sum(one.more for one in members),
        "first_at": _time(min(one.at for one in members)),
        "last_at": _time(max(one.at for one in members)),
        "newest": [_item(one) for one in reversed(members[-MAX_SHOWN:])],
    }


def _item(notice: Told) -> dict[str, Any]:
    links = {
        "event": f"/api/v1/events/{notice.event_id}" if notice.event_id else None,
        "payment": f"/api/v1/payments/{notice.payment_id}" if notice.payment_id else None,
    }
    return {
        "at": _time(notice.at),
        "event_id": notice.event_id and str(notice.event_id),
        "payment_id": notice.payment_id and str(notice.payment_id),
        "details": _details(notice.details),
        "links": {name: path for name, path in links.items() if path is not None},
    }


def _details(details: Mapping[str, object]) -> dict[str, str]:
    """Each in one line, so that none can look like another notice."""
    few = list(details.items())[:MAX_DETAILS]
    return {name: " ".join(str(value).split())[:MAX_DETAIL] for name, value in few}


def _counts(groups: Iterable[Mapping[str, Any]]) -> str:
    numbers: dict[str, int] = {}
    for group in groups:
        numbers[group["kind"]] = numbers.get(group["kind"], 0) + group["count"]
    return ", ".join(_counted(kind, number) for kind, number in numbers.items())


def _counted(kind: str, number: int) -> str:
    one, many = _NAMES[NoticeKind(kind)] if kind in set(NoticeKind) else (kind, kind)
    return f"{number} {one if number == 1 else many}"


def _order(kind: str) -> int:
    kinds = [str(one) for one in NoticeKind]
    return kinds.index(kind) if kind in kinds else len(kinds)


def _lines(content: Content) -> Iterator[str]:
    yield content["subject"]
    for group in content["groups"]:
        of_source = f" of {group['source']}" if group["source"] else ""
        yield ""
        yield f"{_counted(group['kind'], group['count'])}{of_source}, the newest first:"
        yield from (_line(item) for item in group["newest"])
        unshown = group["count"] - len(group["newest"])
        if unshown > 0:
            yield f"- … and {unshown} more"
    if content["left_out"]:
        yield ""
        yield f"… and {content['left_out']} of other kinds and sources"


def _line(item: Mapping[str, Any]) -> str:
    said = dict(item["details"])
    amount = " ".join(filter(None, (said.pop("amount", None), said.pop("currency", None))))
    message = said.pop("message", None)
    words = [item["at"], said.pop("code", None), amount]
    words += [f"{name} {value}" for name, value in said.items()]
    words += [message, *item["links"].values()]
    return "- " + ", ".join(str(one) for one in words if one)


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
