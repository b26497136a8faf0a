"""The sum and the times of the refunds of a payment, also of those in another currency.

A refund in another currency is foreign: it is remembered, never subtracted, and needs review. Which
refunds are foreign is known when the capture is, so it may change. The keys of the times are

    =500          a total of 500, in the payment's own currency
    #re_1         a single refund, by its id
    EUR=500       a foreign total
    EUR#500#re_1  a foreign single refund
    ~EUR=500      the mark of a total that an operator has dealt with while it was foreign
    ~EUR#re_1     the mark of such a single refund, whatever its amount

A mark stays when its refund becomes the payment's own: the refund may become foreign again.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from paidonce.core.events import (
    LOST_DISPUTE_PREFIX,
    OPERATOR_REFUND_PREFIX,
    OUTSIDE_REFUND_PREFIX,
)

TOTAL: Final = "="
SINGLE: Final = "#"
MAX_REFUND_TIMES: Final = 256
"""For how many refunds of a payment the time is remembered: the earliest ones."""

_SETTLED: Final = "~"
_NOT_FOREIGN: Final = (TOTAL, SINGLE, _SETTLED)
_CODE_LENGTH: Final = 3
_UNKNOWN: Final = datetime(1, 1, 1, tzinfo=UTC)

Times = Mapping[str, datetime]


class OwnRefunds(NamedTuple):
    """The refunds in the payment's own currency, and the times of all."""

    total_minor: int
    by_id: Mapping[str, int]
    times: Times


class _Foreign(NamedTuple):
    """A foreign refund: `value` is its id, or the amount of a total."""

    currency: str
    kind: str
    value: str
    amount_minor: int

    @property
    def key(self) -> str:
        amount = f"{self.amount_minor}{SINGLE}" if self.kind == SINGLE else ""
        return f"{self.currency}{self.kind}{amount}{self.value}"

    @property
    def mark(self) -> str:
        return f"{_SETTLED}{self.currency}{self.kind}{self.value}"


def has_foreign(times: Times) -> bool:
    """Whether there is a foreign refund that nobody has dealt with."""
    return any(_read(key).mark not in times for key in times if _is_foreign(key))


def foreign_ids(times: Times) -> frozenset[str]:
    """The ids of foreign refunds."""
    found = (_read(key) for key in times if _is_foreign(key))
    return frozenset(one.value for one in found if one.kind == SINGLE)


def settle(times: Times) -> Times:
    """The times after an operator has dealt with the foreign refunds."""
    marks = {_read(key).mark: at for key, at in times.items() if _is_foreign(key)}
    return {**marks, **times}


def in_currency(known: OwnRefunds, before: str | None, currency: str) -> OwnRefunds:
    """The same refunds after the currency of the payment has changed. None: it was not known."""
    if before not in (None, currency):
        assert before is not None
        known = OwnRefunds(0, {}, _all_foreign(known, before))
    if not any(map(_is_foreign, known.times)):
        return known
    return _without_foreign(known, currency)


def merge_times(one: Times, other: Times) -> Times:
    """The earliest time of each refund. Of a foreign one, the largest amount is kept."""
    if not other:
        return one
    if not one:
        return other
    merged = {key: min(filter(None, (one.get(key), other.get(key)))) for key in {*one, *other}}
    if any(map(_is_foreign, merged)):
        merged = _unique(merged)
    return merged if len(merged) <= MAX_REFUND_TIMES else _earliest(merged)


def _earliest(times: Times) -> Times:
    """The earliest refunds, and as many marks: neither takes the place of the other."""
    ranked = sorted(times.items(), key=lambda item: (item[1], item[0]))
    refunds = [item for item in ranked if item[0][0] != _SETTLED]
    marks = [item for item in ranked if item[0][0] == _SETTLED]
    return dict(refunds[:MAX_REFUND_TIMES] + marks[:MAX_REFUND_TIMES])


def _is_foreign(key: str) -> bool:
    return key[0] not in _NOT_FOREIGN


def _read(key: str) -> _Foreign:
    currency, kind, rest = key[:_CODE_LENGTH], key[_CODE_LENGTH], key[_CODE_LENGTH + 1 :]
    amount, _, value = rest.partition(SINGLE) if kind == SINGLE else (rest, "", rest)
    return _Foreign(currency, kind, value, int(amount))


def _all_foreign(known: OwnRefunds, currency: str) -> Times:
    times = {key: at for key, at in known.times.items() if key[0] not in (TOTAL, SINGLE)}
    times |= {currency + key: at for key, at in known.times.items() if key[0] == TOTAL}
    if known.total_minor > 0:
        times.setdefault(f"{currency}{TOTAL}{known.total_minor}", _UNKNOWN)
    for refund_id, amount_minor in known.by_id.items():
        key = _Foreign(currency, SINGLE, refund_id, amount_minor).key
        times[key] = known.times.get(SINGLE + refund_id, _UNKNOWN)
    return times


def _without_foreign(known: OwnRefunds, currency: str) -> OwnRefunds:
    """Make foreign refunds in this currency the payment's own."""
    total_minor, by_id, times = known.total_minor, dict(known.by_id), dict(known.times)
    for key, at in known.times.items():
        if not _is_foreign(key) or _read(key).currency != currency:
            continue
        _, kind, value, amount_minor = _read(key)
        if kind == SINGLE:
            by_id[value] = max(amount_minor, by_id.get(value, 0))
        else:
            total_minor = max(total_minor, amount_minor)
        del times[key]
        times[kind + value] = min(at, times.get(kind + value, at))
    return OwnRefunds(total_minor, by_id, times)


def _unique(times: Times) -> dict[str, datetime]:
    """Each foreign refund once: the largest amount, the earliest time."""
    unique = {key: at for key, at in times.items() if not _is_foreign(key)}
    found: dict[str, tuple[_Foreign, datetime]] = {}
    for key, at in times.items():
        if not _is_foreign(key):
            continue
        refund = _read(key)
        known, known_at = found.get(refund.mark, (refund, at))
        found[refund.mark] = (max(refund, known), min(at, known_at))
    return unique | {refund.key: at for refund, at in found.values()}


def refunded_sum(total_minor: int, refunds: Mapping[str, int]) -> int:
    """What was refunded: the larger of what the gateway and what operators report.

    The gateway reports totals, or distinct refunds; lost disputes are never in a total. What was
    refunded outside of the gateway comes on top.
    """
    operator_minor = outside_minor = lost_minor = single_minor = 0
    for name, amount_minor in refunds.items():
        if name.startswith(OPERATOR_REFUND_PREFIX):
            operator_minor += amount_minor
        elif name.startswith(OUTSIDE_REFUND_PREFIX):
            outside_minor += amount_minor
        elif name.startswith(LOST_DISPUTE_PREFIX):
            lost_minor += amount_minor
        else:
            single_minor += amount_minor
    gateway_minor = max(total_minor, single_minor) + lost_minor
    return max(gateway_minor, operator_minor) + outside_minor


def gateway_total(total_minor: int, refunds: Mapping[str, int], refunded_minor: int) -> int:
    """The total that explains what was refunded, if the distinct refunds do not.

    A refund id may belong to another payment. Such a refund is only a part of the total.
    """
    if refunded_sum(total_minor, refunds) >= refunded_minor:
        return total_minor
    prefixes = (LOST_DISPUTE_PREFIX, OUTSIDE_REFUND_PREFIX)
    apart_minor = sum(one for name, one in refunds.items() if name.startswith(prefixes))
    return refunded_minor - apart_minor
