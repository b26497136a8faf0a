"""The HTTP application of operators: the routes of every capability."""

from fastapi import FastAPI

from paidonce import __version__
from paidonce.api import errors
from paidonce.api.requests import Authenticator, BodyLimit
from paidonce.audit import api as audit_api
from paidonce.bootstrap import documentation
from paidonce.bootstrap.services import Services
from paidonce.bus import api as bus_api
from paidonce.core.masking import Masker
from paidonce.events import api as events_api
from paidonce.guard import api as guard_api
from paidonce.keys import api as keys_api
from paidonce.orders import api as orders_api
from paidonce.payments import api as payments_api
from paidonce.payouts import api as payouts_api
from paidonce.reconciliation import api as reconciliation_api
from paidonce.reload import api as reload_api
from paidonce.replay import api as replay_api
from paidonce.statistics import api as statistics_api
from paidonce.users import api as users_api
from paidonce.wallet import api as wallet_api


def operators_api(
    services: Services, authenticator: Authenticator, masker: Masker, max_body_bytes: int
) -> FastAPI:
    """The application for everything that is not a delivery."""
    api = FastAPI(title="Paidonce", version=__version__, openapi_url=None, redirect_slashes=False)
    api.state.authenticator = authenticator
    api.state.masker = masker
    api.add_middleware(BodyLimit, max_body_bytes=max_body_bytes)
    errors.add_to(api)
    documentation.add_to(api)
    users_api.add_to(api, services.users)
    orders_api.add_to(api, services.orders)
    wallet_api.add_to(api, services.wallets)
    payouts_api.add_to(api, services.payouts)
    payments_api.add_to(api, services.payments)
    events_api.add_to(api, services.events)
    replay_api.add_to(api, services.replays, services.dead_letters)
    statistics_api.add_to(api, services.statistics)
    reconciliation_api.add_to(api, services.reconciliations)
    audit_api.add_to(api, services.audit)
    bus_api.add_to(api, services.bus)
    guard_api.add_to(api, services.bans)
    keys_api.add_to(api, services.keys)
    reload_api.add_to(api, services.reloads)
    return api
