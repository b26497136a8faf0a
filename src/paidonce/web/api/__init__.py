"""The operators' HTTP API, thin over `operations`: a module for each kind of thing."""

from fastapi import FastAPI

from paidonce import __version__
from paidonce.operations import Operations
from paidonce.web.api import (
    documentation,
    errors,
    events,
    orders,
    payments,
    reconciliations,
    users,
    wallets,
)
from paidonce.web.api.documentation import describe
from paidonce.web.api.shapes import ERRORS

__all__ = ["describe", "operators_api"]


def operators_api(operations: Operations) -> FastAPI:
    """The application for everything that is not a delivery."""
    api = FastAPI(
        title="Paidonce", version=__version__, docs_url=None, redoc_url=None, responses=ERRORS
    )
    api.state.operations = operations
    for calls in (errors, documentation, users, orders, wallets, payments, events, reconciliations):
        calls.add_to(api)
    return api
