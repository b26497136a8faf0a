"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

from paidonce.operations.bans import BanVerbs
from paidonce.operations.bus import BusVerbs
from paidonce.operations.desk import HOST, MAX_PAGE, Actor, Found, Scope
from paidonce.operations.keys import KeyVerbs
from paidonce.operations.ledger import LedgerVerbs
from paidonce.operations.orders import OrderRequest
from paidonce.operations.payments import PaymentVerbs
from paidonce.operations.reconciliations import ReconciliationVerbs
from paidonce.operations.replay_views import DiscardView, ReplayView
from paidonce.operations.replays import MAX_RATE, ReplayVerbs
from paidonce.operations.reprocessing import ReprocessingVerbs
from paidonce.operations.statistics import StatisticsVerbs
from paidonce.operations.wallet_payments import WalletPaymentVerbs
from paidonce.store.dead_messages import LetterFilter
from paidonce.store.replays import EventFilter

__all__ = [
    "HOST",
    "MAX_PAGE",
    "MAX_RATE",
    "Actor",
    "DiscardView",
    "EventFilter",
    "Found",
    "LetterFilter",
    "Operations",
    "OrderRequest",
    "ReplayView",
    "Scope",
]


class Operations(
    PaymentVerbs,
    WalletPaymentVerbs,
    LedgerVerbs,
    ReprocessingVerbs,
    ReplayVerbs,
    ReconciliationVerbs,
    StatisticsVerbs,
    KeyVerbs,
    BanVerbs,
    BusVerbs,
):
    """All verbs, of each kind of thing."""
