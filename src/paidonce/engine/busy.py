"""What somebody else has in hand at this moment: whoever needs it waits, and holds up nobody."""

from paidonce.domain.applying import waits_for_email, waits_for_order
from paidonce.domain.email import email_key
from paidonce.domain.events import PaymentEvent, UserId
from paidonce.domain.payments import Payment
from paidonce.domain.state import State
from paidonce.engine.items import Incoming, Refused, Waiting
from paidonce.store.settlement import Loaded


class Busy:
    """What could not be locked when a batch was loaded."""

    def __init__(self, loaded: Loaded, state: State) -> None:
        self._loaded = loaded
        self._state = state

    def has_event(self, item: Incoming | Refused | Waiting) -> bool:
        """Whether somebody else has what the event of the item is about."""
        event, loaded = item.event, self._loaded
        if loaded.is_quiet or not isinstance(event, PaymentEvent) or item.source.is_calling_back:
            return False
        named = ((item.source.id, one) for one in event.ids)
        if any(loaded.names.get(name) in loaded.busy_payments for name in named):
            return True
        known = self._state.payments_known_as(item.source.id, event.ids)
        return self.has(None, event.order, event.email) or any(self.has(one) for one in known)

    def has(
        self, payment: Payment | None, reference: str | None = None, email: str | None = None
    ) -> bool:
        """Whether somebody else has what the payment, or an event of it, is for."""
        loaded = self._loaded
        if loaded.is_quiet:
            return False
        references = {reference, payment.order if payment else None} - {None}
        orders = [one for one in (loaded.orders.get(str(ref)) for ref in references) if one]
        if not loaded.busy_orders.isdisjoint(references):
            return True
        named = {email, payment.email if payment else None, *(one.email for one in orders)}
        emails = {email_key(one) for one in named if one is not None}
        users: set[UserId | None] = {self._state.users.get(one) for one in emails}
        users |= {payment.user_id if payment else None, *(one.user_id for one in orders)}
        names = {*map(waits_for_email, emails), *(waits_for_order(str(one)) for one in references)}
        is_unsure = not loaded.unsure.isdisjoint(names)
        return is_unsure or not loaded.busy_users.isdisjoint(users - {None})
