"""Plans: what is sold, with a price, a duration and a product, and all earlier versions."""

import calendar
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from paidonce.core.money import Money


@dataclass(frozen=True, slots=True)
class Plan:
    """A version of a plan, for some days or calendar months.

    It is sold from `valid_from` until other terms replace it or it leaves the settings.
    """

    id: str
    price: Money
    product: str
    days: int
    months: int
    is_default: bool
    valid_from: datetime
    valid_until: datetime | None = None  # None: it is on sale

    @property
    def duration(self) -> "Duration":
        return Duration(self.months, timedelta(days=self.days))


@dataclass(frozen=True, slots=True)
class Duration:
    """The length of a period: calendar months, or a time."""

    months: int
    time: timedelta

    def extend(self, start: datetime, anchor_day: int) -> datetime:
        """The end of a period that begins at `start`, with months that end on the anchor day."""
        if self.months == 0:
            return start + self.time
        return _months_later(start, self.months, anchor_day) + self.time


@dataclass(frozen=True, slots=True)
class PlanBook:
    """All versions of all plans, oldest first, and which of them were the default plan."""

    versions: Mapping[str, tuple[Plan, ...]] = field(default_factory=lambda: MappingProxyType({}))
    defaults: tuple[Plan, ...] = ()

    def find(self, plan_id: str | None, paid_at: datetime) -> Plan | None:
        """The version at the time of payment; None if unknown. No id means the default plan.

        A payment from before the first version has the first. One from a time at which the plan was
        not on sale has the version with which it came back, and none while it is not back.
        """
        versions = self._versions(plan_id)
        if len(versions) == 1 and versions[0].valid_until is None:
            return versions[0]
        later = bisect_right(versions, paid_at, key=lambda plan: plan.valid_from)
        if later > 0:
            until = versions[later - 1].valid_until
            if until is None or paid_at < until:
                return versions[later - 1]
        return versions[later] if later < len(versions) else None

    def on_sale(self, plan_id: str | None) -> Plan | None:
        """The version that is sold now; None if the plan is unknown or left the settings."""
        versions = self._versions(plan_id)
        return versions[-1] if versions and versions[-1].valid_until is None else None

    def _versions(self, plan_id: str | None) -> tuple[Plan, ...]:
        return self.defaults if plan_id is None else self.versions.get(plan_id, ())


def plan_book(plans: Iterable[Plan]) -> PlanBook:
    """The book of all versions of all plans."""
    oldest_first = sorted(plans, key=lambda plan: plan.valid_from)
    versions: dict[str, tuple[Plan, ...]] = {}
    for plan in oldest_first:
        versions[plan.id] = (*versions.get(plan.id, ()), plan)
    return PlanBook(versions, tuple(plan for plan in oldest_first if plan.is_default))


def _months_later(start: datetime, months: int, anchor_day: int) -> datetime:
    """The anchor day some months later, or the last day of that month if it is shorter."""
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    day = min(anchor_day, calendar.monthrange(year, month + 1)[1])
    return start.replace(year=year, month=month + 1, day=day)
