"""The operators' HTTP API, thin over `operations`: a module for each kind of thing."""

from fastapi import FastAPI

from paidonce import __version__
from paidonce.operations import Operations
from paidonce.web.api import (
    bans,
    bus,
    dead_letters,
    documentation,
    errors,
    events,
    keys,
    orders,
    payments,
    reconciliations,
    replays,
    reservations,
    statistics,
    users,
    wallet_payments,
    wallets,
)
from paidonce.web.api.documentation import describe
from paidonce.web.api.limits import BodyLimit
from paidonce.web.key_guard import KeyGuard

__all__ = ["describe", "operators_api"]


def operators_api(operations: Operations, key_guard: KeyGuard, max_body_bytes: int) -> FastAPI:
    """The application for everything that is not a delivery."""
    api = FastAPI(title="Paidonce", version=__version__, openapi_url=None)
    api.state.operations = operations
    api.state.key_guard = key_guard
    api.add_middleware(BodyLimit, max_body_bytes=max_body_bytes)
    things = (
        users,
        orders,
        wallets,
        reservations,
        wallet_payments,
        payments,
        events,
        dead_letters,
        replays,
        statistics,
    )
    for one in (errors, documentation, *things, reconciliations, bus, bans, keys):
        one.add_to(api)
    return api
