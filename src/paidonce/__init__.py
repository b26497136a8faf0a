"""Paidonce receives payment webhooks from many gateways and makes each one count exactly once.

What other programs may use of it is listed here, and imported when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

__all__ = [
    "Happened",
    "Mounted",
    "Order",
    "OrderRequest",
    "Payment",
    "PaymentEvent",
    "Reject",
    "Retry",
    "asgi",
    "on",
]

_HOMES: Final = {
    "Happened": "paidonce.engine.handlers",
    "Mounted": "paidonce.mounting",
    "Order": "paidonce.domain.orders",
    "OrderRequest": "paidonce.operations",
    "Payment": "paidonce.domain.payments",
    "PaymentEvent": "paidonce.domain.events",
    "Reject": "paidonce.errors",
    "Retry": "paidonce.errors",
    "asgi": "paidonce.mounting",
    "on": "paidonce.engine.handlers",
}

if TYPE_CHECKING:
    from paidonce.domain.events import PaymentEvent
    from paidonce.domain.orders import Order
    from paidonce.domain.payments import Payment
    from paidonce.engine.handlers import Happened, on
    from paidonce.errors import Reject, Retry
    from paidonce.mounting import Mounted, asgi
    from paidonce.operations import OrderRequest


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
