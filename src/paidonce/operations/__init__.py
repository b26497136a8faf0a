"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

from paidonce.operations.bans import BanVerbs
from paidonce.operations.desk import MAX_PAGE, ON_THIS_MACHINE, Actor, Scope
from paidonce.operations.events import EventVerbs
from paidonce.operations.keys import KeyVerbs
from paidonce.operations.orders import OrderRequest
from paidonce.operations.payments import PaymentVerbs

__all__ = ["MAX_PAGE", "ON_THIS_MACHINE", "Actor", "Operations", "OrderRequest", "Scope"]


class Operations(PaymentVerbs, EventVerbs, KeyVerbs, BanVerbs):
    """All verbs: of users, orders, wallets and payments, of events, of keys, and of bans."""
