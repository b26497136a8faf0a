"""Counts of deliveries, in all and by group."""

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many deliveries were received, duplicates and refused ones too, and what became of them.

    `succeeded` are events that ended PROCESSED or IGNORED, `failed` those that ended FAILED_FINAL
    or DEAD_LETTER, with conflicts and refused deliveries; `waiting` are neither yet. `success_rate`
    is succeeded / (succeeded + failed), and 1 while nothing has ended.
    """

    received: int
    duplicates: int
    waiting: int
    succeeded: int
    failed: int
    success_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsOfSource(Counts):
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsOfMethod(Counts):
    signature_method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsOfDay(Counts):
    day: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(Counts):
    """The counts of some days, and of each group of them. A day is one of UTC, that of arrival."""

    days: int
    by_source: list[CountsOfSource]
    by_signature_method: list[CountsOfMethod]
    by_day: list[CountsOfDay]
