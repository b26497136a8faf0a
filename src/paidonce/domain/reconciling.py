"""What a gateway says of a payment, held against what is known of it here (PAY-9).

Facts only grow: what the gateway says beyond them can be added, and what it takes back cannot. So
the one is repaired, and the other is for a person to see.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from paidonce.domain.events import PaymentEvent
from paidonce.domain.payments import Facts, facts_of


class Finding(StrEnum):
    """How the two do not agree."""

    BEHIND = "behind"  # the gateway says more
    DIFFERS = "differs"  # the gateway says less, or something else
    MISSING_HERE = "missing_here"
    MISSING_THERE = "missing_there"


REPAIRABLE: Final = frozenset({Finding.BEHIND, Finding.MISSING_HERE})


def compare(here: Facts | None, there: PaymentEvent | None, now: datetime) -> Finding | None:
    """How what is known here and all that the gateway says do not agree; None if they do.

    Money is what counts: a payment that never had any is missing nowhere.
    """
    known = here or Facts()
    if there is None:
        return Finding.MISSING_THERE if known.captured_minor > 0 else None
    told = facts_of(there, now)
    if here is None:
        return Finding.MISSING_HERE if told.captured_minor > 0 else None
    if _says_less(told, known):
        return Finding.DIFFERS
    return Finding.BEHIND if _says_less(known, told) else None


def _says_less(one: Facts, other: Facts) -> bool:
    """Whether the one lacks what the other has, or has money that is not comparable."""
    if one.currency and other.currency and one.currency != other.currency:
        return True
    return (
        one.captured_minor < other.captured_minor
        or one.refunded_minor < other.refunded_minor
        or (one.canceled_at is None and other.canceled_at is not None)
        or (one.is_stale and other.is_told_in_time)
    )


@dataclass(slots=True)
class Sums:
    """Money of one currency that a gateway reports, and how much of it is here."""

    reported_minor: int = 0
    explained_minor: int = 0

    @property
    def explained_percent(self) -> float:
        """Of what was reported; all of nothing."""
        if self.reported_minor == 0:
            return 100.0
        return self.explained_minor * 100 / self.reported_minor


@dataclass(slots=True)
class Tally:
    """What a reconciliation has counted so far. What it found is kept elsewhere."""

    compared: int = 0
    agreed: int = 0  # as it was found, or after it was repaired
    unreadable: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)

    def report(self, entry: PaymentEvent) -> None:
        """Count what the gateway says."""
        self.compared += 1
        if entry.amount is not None:
            sums = self.sums.setdefault(entry.amount.currency, Sums())
            sums.reported_minor += entry.amount.amount_minor

    def agree(self, entry: PaymentEvent | None) -> None:
        """Count that it is here as well; without an entry, what the statement did not name."""
        self.agreed += 1
        if entry is not None and entry.amount is not None:
            self.sums[entry.amount.currency].explained_minor += entry.amount.amount_minor
