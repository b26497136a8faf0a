"""What is sold: plans with a price, a duration and a product, and their prices of the past."""

import calendar
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from paidonce.domain.money import Money


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as it is sold from `valid_from` on. Its duration is in days or in calendar months."""

    id: str
    price: Money
    product: str
    days: int
    months: int
    is_default: bool
    valid_from: datetime

    def extend(self, start: datetime) -> datetime:
        """The end of a period of this plan that begins at `start`."""
        return _months_later(start, self.months) + timedelta(days=self.days)


@dataclass(frozen=True, slots=True)
class PlanBook:
    """Every version of every plan that is on sale."""

    versions: Mapping[str, tuple[Plan, ...]] = field(default_factory=lambda: MappingProxyType({}))
    default_id: str | None = None

    def find(self, plan_id: str | None, paid_at: datetime) -> Plan | None:
        """The plan as it was when paid: no id means the default one, an unknown id means none."""
        chosen = plan_id if plan_id is not None else self.default_id
        versions = self.versions.get(chosen) if chosen is not None else None
        if not versions:
            return None
        if len(versions) == 1:
            return versions[0]
        after = bisect_right(versions, paid_at, key=lambda plan: plan.valid_from)
        return versions[max(after - 1, 0)]


def plan_book(plans: Iterable[Plan], on_sale: Iterable[str]) -> PlanBook:
    """A book of those versions whose plan is on sale, the default one being the latest's word."""
    sold = set(on_sale)
    versions: dict[str, tuple[Plan, ...]] = {}
    for plan in sorted(plans, key=lambda plan: plan.valid_from):
        if plan.id in sold:
            versions[plan.id] = (*versions.get(plan.id, ()), plan)
    defaults = [plan_id for plan_id, known in versions.items() if known[-1].is_default]
    return PlanBook(versions, min(defaults, default=None))


def _months_later(start: datetime, months: int) -> datetime:
    """The same day some months later, or that month's last: 31 January + 1 month = 28 February."""
    if months == 0:
        return start
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    day = min(start.day, calendar.monthrange(year, month + 1)[1])
    return start.replace(year=year, month=month + 1, day=day)
