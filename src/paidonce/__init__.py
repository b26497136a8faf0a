"""Paidonce receives payment webhooks from many gateways and makes each one count exactly once.

What other programs may use of it is listed here, and imported when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

__all__ = [
    "HookEvent",
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
    "HookEvent": "paidonce.hooks.registry",
    "Mounted": "paidonce.asgi",
    "Order": "paidonce.core.orders",
    "OrderRequest": "paidonce.orders.model",
    "Payment": "paidonce.core.payments",
    "PaymentEvent": "paidonce.core.events",
    "Reject": "paidonce.errors",
    "Retry": "paidonce.errors",
    "asgi": "paidonce.asgi",
    "on": "paidonce.hooks.registry",
}

if TYPE_CHECKING:
    from paidonce.asgi import Mounted, asgi
    from paidonce.core.events import PaymentEvent
    from paidonce.core.orders import Order
    from paidonce.core.payments import Payment
    from paidonce.errors import Reject, Retry
    from paidonce.hooks.registry import HookEvent, on
    from paidonce.orders.model import OrderRequest


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
