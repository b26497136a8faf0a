"""A wallet as a child would keep it: the model that the real one is held against.

It knows nothing of the domain's code: a purse is what is in it, what is owed, and slips of paper.
"""

from dataclasses import dataclass, field

Answer = str
"""The status of the slip, or the code of the refusal."""


@dataclass
class Slip:
    """What is written down for a payment."""

    purse: str
    amount: int
    status: str
    over_at: float | None
    taken: int = 0


@dataclass
class Purse:
    """What somebody has, and what he owes."""

    inside: int = 0
    owed: int = 0


@dataclass
class TopUp:
    """Money that came, and how much of it went back."""

    purse: str
    amount: int
    back: int = 0


@dataclass
class Model:
    """All purses and slips, and a clock."""

    purses: dict[str, Purse] = field(default_factory=dict)
    slips: dict[str, Slip] = field(default_factory=dict)
    top_ups: list[TopUp] = field(default_factory=list)
    clock: float = 0.0

    def held(self, purse: str) -> int:
        slips = [one for one in self.slips.values() if one.purse == purse]
        return sum(one.amount for one in slips if one.status == "RESERVED")

    def free(self, purse: str) -> int:
        return self.purses[purse].inside - self.held(purse)

    def reserve(self, payment: str, purse: str, amount: int, lasts: float | None) -> Answer:
        if payment in self.slips:
            slip = self.slips[payment]
            if (slip.purse, slip.amount) != (purse, amount):
                return "IDEMPOTENCY_CONFLICT"
            return "INSUFFICIENT_FUNDS" if slip.status == "REJECTED" else slip.status
        over_at = None if lasts is None else self.clock + lasts
        status = "RESERVED" if self.free(purse) >= amount else "REJECTED"
        self.slips[payment] = Slip(purse, amount, status, over_at)
        return "INSUFFICIENT_FUNDS" if status == "REJECTED" else status

    def commit(self, payment: str, amount: int | None) -> Answer:
        slip = self.slips.get(payment)
        if slip is None:
            return "RESERVATION_MISSING"
        if slip.status == "COMMITTED":
            return "COMMITTED" if amount in (None, slip.taken) else "ALREADY_COMMITTED"
        if slip.status != "RESERVED":
            return _LOST[slip.status]
        if self._is_over(slip):
            return "EXPIRED"
        if amount is not None and amount > slip.amount:
            return "AMOUNT_TOO_LARGE"
        return self._take(slip, slip.amount if amount is None else amount)

    def release(self, payment: str) -> Answer:
        slip = self.slips.get(payment)
        if slip is None:
            return "RESERVATION_MISSING"
        if slip.status == "COMMITTED":
            return "ALREADY_COMMITTED"
        if slip.status in ("EXPIRED", "REJECTED"):
            return _LOST[slip.status]
        slip.status = "RELEASED"
        return "RELEASED"

    def expire(self, payment: str) -> Answer:
        slip = self.slips.get(payment)
        if slip is None:
            return "RESERVATION_MISSING"
        if slip.status == "RESERVED" and self._is_over(slip):
            slip.status = "EXPIRED"
        return slip.status

    def late_capture(self, payment: str) -> Answer:
        slip = self.slips.get(payment)
        if slip is None:
            return "RESERVATION_MISSING"
        if slip.status == "COMMITTED":
            return "COMMITTED" if slip.taken == slip.amount else "ALREADY_COMMITTED"
        if slip.status != "RESERVED" and self.free(slip.purse) < slip.amount:
            return "INSUFFICIENT_FUNDS"
        return self._take(slip, slip.amount)

    def top_up(self, purse: str, amount: int) -> None:
        self.top_ups.append(TopUp(purse, amount))
        paid_off = min(self.purses[purse].owed, amount)
        self.purses[purse].owed -= paid_off
        self.purses[purse].inside += amount - paid_off

    def refund(self, number: int, total: int) -> None:
        """The gateway says how much of a top-up has gone back in all."""
        top_up = self.top_ups[number]
        more = max(total - top_up.back, 0)
        top_up.back += more
        there = min(self.free(top_up.purse), more)
        self.purses[top_up.purse].inside -= there
        self.purses[top_up.purse].owed += more - there

    def _take(self, slip: Slip, amount: int) -> Answer:
        slip.status, slip.taken = "COMMITTED", amount
        self.purses[slip.purse].inside -= amount
        return "COMMITTED"

    def _is_over(self, slip: Slip) -> bool:
        return slip.over_at is not None and slip.over_at <= self.clock


_LOST = {
    "RELEASED": "ALREADY_RELEASED",
    "EXPIRED": "EXPIRED",
    "REJECTED": "INSUFFICIENT_FUNDS",
}
