"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

from paidonce.operations.desk import MAX_PAGE, Actor, Scope
from paidonce.operations.events import EventVerbs
from paidonce.operations.keys import KeyVerbs
from paidonce.operations.orders import OrderRequest
from paidonce.operations.payments import PaymentVerbs
from paidonce.operations.reconciliations import ReconciliationVerbs

__all__ = ["MAX_PAGE", "Actor", "Operations", "OrderRequest", "Scope"]


class Operations(PaymentVerbs, EventVerbs, KeyVerbs, ReconciliationVerbs):
    """All verbs: of users, orders, wallets and payments, events, keys and reconciliations."""
