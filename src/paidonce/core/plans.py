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
    """A version of a plan, sold from `valid_from` on, for some days or calendar months."""

    id: str
    price: Money
    product: str
    days: int
    months: int
    is_default: bool
    valid_from: datetime

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
    """All versions of the plans on sale."""

    versions: Mapping[str, tuple[Plan, ...]] = field(default_factory=lambda: MappingProxyType({}))
    default_id: str | None = None

    def find(self, plan_id: str | None, paid_at: datetime) -> Plan | None:
        """The version at the time of payment; None if unknown. No id means the default plan."""
        wanted_id = plan_id if plan_id is not None else self.default_id
        versions = self.versions.get(wanted_id) if wanted_id is not None else None
        if not versions:
            return None
        if len(versions) == 1:
            return versions[0]
        after = bisect_right(versions, paid_at, key=lambda plan: plan.valid_from)
        return versions[max(after - 1, 0)]


def plan_book(plans: Iterable[Plan], on_sale: Iterable[str]) -> PlanBook:
    """All versions of the plans on sale. The latest versions say which plan is the default."""
    ids = set(on_sale)
    versions: dict[str, tuple[Plan, ...]] = {}
    for plan in sorted(plans, key=lambda plan: plan.valid_from):
        if plan.id in ids:
            versions[plan.id] = (*versions.get(plan.id, ()), plan)
    defaults = [plan_id for plan_id, found in versions.items() if found[-1].is_default]
    return PlanBook(versions, min(defaults, default=None))


def _months_later(start: datetime, months: int, anchor_day: int) -> datetime:
    """The anchor day some months later, or the last day of that month if it is shorter."""
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    day = min(anchor_day, calendar.monthrange(year, month + 1)[1])
    return start.replace(year=year, month=month + 1, day=day)
