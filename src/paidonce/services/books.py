"""What a batch of commands is judged by: wallets and reservations as each command leaves them."""

from datetime import datetime

import orjson

from paidonce import telemetry
from paidonce.domain.money import format_minor
from paidonce.domain.reservations import Command, Judged, Reserve, judge
from paidonce.domain.wallets import Wallet
from paidonce.store.reservations import Action, Changes, Loaded, Movement


class Books:
    """The working set of a batch, and what has to be written of it."""

    def __init__(self, loaded: Loaded, now: datetime) -> None:
        self._loaded = loaded
        self._now = now
        self._wallets = dict(loaded.wallets)
        self._reservations = dict(loaded.reservations)
        self._movements: list[Movement] = []
        self._actions: list[Action] = []

    def judge(self, command: Command, actor: str | None = None) -> Judged:
        """What the command leads to, after all that were judged before it."""
        known = self._reservations.get(command.payment_id)
        judged = judge(self._wallet_of(command), known, command, self._now)
        if judged.reservation is None or judged.reservation == known:
            return judged
        assert judged.wallet is not None
        self._wallets[judged.wallet.id] = judged.wallet
        self._reservations[command.payment_id] = judged.reservation
        if judged.entries:
            currency = judged.wallet.currency
            self._movements.append(
                Movement(command.payment_id, currency, self._now, judged.entries)
            )
        if actor is not None:
            self._actions.append(_action(actor, judged.wallet, judged))
        return judged

    def changes(self) -> Changes:
        """Each row that is not as it was loaded, once."""
        seen = self._loaded.reservations
        changed = [
            one for one in self._reservations.values() if one is not seen.get(one.payment_id)
        ]
        return Changes(
            wallets=[one for one in self._wallets.values() if one != self._loaded.wallets[one.id]],
            made=[one for one in changed if one.payment_id not in seen],
            ended=[(seen[one.payment_id].status, one) for one in changed if one.payment_id in seen],
            movements=self._movements,
            actions=self._actions,
        )

    def _wallet_of(self, command: Command) -> Wallet | None:
        """A reservation's own wallet; of a new one, the wallet that is named."""
        known = self._reservations.get(command.payment_id)
        if known is not None:
            return self._wallets.get(known.wallet_id)
        return self._wallets.get(command.wallet_id) if isinstance(command, Reserve) else None


def _action(actor: str, wallet: Wallet, judged: Judged) -> Action:
    reservation = judged.reservation
    assert reservation is not None
    minor = reservation.committed_minor or reservation.amount_minor
    details = {
        "payment_id": telemetry.masked(reservation.payment_id),
        "wallet_id": str(wallet.id),
        "amount": format_minor(minor, wallet.currency),
        "currency": wallet.currency,
    }
    action = f"wallet_{reservation.status.lower()}"
    return Action(actor, action, orjson.dumps(details).decode())
