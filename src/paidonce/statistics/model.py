"""Counts of deliveries, in total and by group."""

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many deliveries were received, also duplicates and rejected ones, and their results.

    `succeeded`: events that are PROCESSED or IGNORED. `failed`: events that are FAILED_FINAL or
    DEAD_LETTER, conflicts, and authentic deliveries that were refused. `waiting`: the others.
    `rejected`: deliveries that failed verification; they are neither. `success_rate` is
    succeeded / (succeeded + failed), and 1 while nothing has ended.
    """

    received: int
    duplicates: int
    rejected: int
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
    """The counts of some days, and of each group. A day is the UTC day of the arrival."""

    days: int
    by_source: list[CountsOfSource]
    by_signature_method: list[CountsOfMethod]
    by_day: list[CountsOfDay]
