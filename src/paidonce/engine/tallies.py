"""What a replay has come to, as it is shown to people."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from paidonce.domain.money import format_minor
from paidonce.engine.fates import Again
from paidonce.store.replays import Progress

MAX_SAMPLE: Final = 20
"""How many of the first changes are shown one by one."""


def tallied(progress: Progress, done: Iterable[Again]) -> Progress:
    """The progress with these events added to it."""
    counts, sample = Counter(progress.counts), list(progress.sample)
    number: int = progress.applied.get("number", 0)
    sums_minor = Counter[str](progress.applied.get("sums_minor", {}))
    for one in done:
        counts[f"{one.stored.status} → {one.becomes}"] += 1
        if one.is_changed and len(sample) < MAX_SAMPLE:
            sample.append(_shown(one))
        for money in one.applied:
            number += 1
            sums_minor[money.currency] += money.amount_minor
    applied = {"number": number, "sums_minor": dict(sums_minor)} if number else {}
    return Progress(dict(counts), applied, sample)


def _shown(again: Again) -> dict[str, Any]:
    is_other = again.event_id != again.stored.event_id
    shown = {
        "event_id": str(again.stored.event_id),
        "was": again.stored.status,
        "was_error_code": again.stored.error_code,
        "is": again.becomes,
        "error_code": again.code,
        "new_event_id": str(again.event_id) if is_other else None,
        "applied": [
            f"{format_minor(one.amount_minor, one.currency)} {one.currency}"
            for one in again.applied
        ],
    }
    return {name: value for name, value in shown.items() if value}
