"""Reservations whose time is over are let go, through the same guard as all that changes them."""

from datetime import datetime
from typing import Final

from paidonce.domain.reservations import Expire, ReservationStatus
from paidonce.services.wallet import obey
from paidonce.store.queries import Connection
from paidonce.store.reservations import expiring
from paidonce.telemetry import logger

log = logger(__name__)

PERIOD_S: Final = 10.0
PAGE: Final = 128
MAX_PAGES: Final = 20
_EXPIRED: Final = ReservationStatus.EXPIRED


class Expiry:
    """A task of the janitor's. The database's clock says what is over."""

    name = "reservations"
    period_s = PERIOD_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Let go of some pages; returns whether there are more."""
        for _ in range(MAX_PAGES):
            async with connection.transaction():
                found = await expiring(connection, PAGE)
                judged = await obey(connection, [Expire(one) for one in found]) if found else []
            ended = [
                one for one in judged if one.reservation and one.reservation.status is _EXPIRED
            ]
            if ended:
                log.info("reservations_expired", number=len(ended))
            if len(found) < PAGE:
                return False
        return True
