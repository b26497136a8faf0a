"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

from paidonce.operations.desk import MAX_PAGE, Actor, Found, Scope
from paidonce.operations.events import EventVerbs
from paidonce.operations.keys import KeyVerbs
from paidonce.operations.orders import OrderRequest
from paidonce.operations.payments import PaymentVerbs
from paidonce.operations.statistics import StatisticsVerbs

__all__ = ["MAX_PAGE", "Actor", "Found", "Operations", "OrderRequest", "Scope"]


class Operations(PaymentVerbs, EventVerbs, StatisticsVerbs, KeyVerbs):
    """All verbs: of users, orders, wallets and payments, of events and their counts, of keys."""
