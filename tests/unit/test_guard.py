"""The guard without a server: senders that have no address."""

from paidonce.domain.risk import BanPolicy, Suspicion
from paidonce.engine.reputation import Reputation
from paidonce.engine.security_log import SecurityLog
from paidonce.settings import LimitsSettings
from paidonce.web.addresses import Addresses
from paidonce.web.guard import Guard, Limits

POLICY = BanPolicy(threshold=3.0, half_life_s=600.0, first_s=600.0, longest_s=600.0)


async def test_who_has_no_address_is_limited_and_neither_banned_nor_known() -> None:
    """SEC-4: behind a socket of the file system, all are one, and may be anybody."""
    log = SecurityLog()
    reputation = Reputation(None, POLICY, log)  # type: ignore[arg-type]
    guard = Guard(Addresses([], {}), reputation, Limits.of(LimitsSettings(unverified="5/day")), log)
    for nobody in (None, ""):
        guard.verified(nobody)
        assert guard.refusal(nobody, None, "r") is None
    for _ in range(5):
        guard.failed(None, None, "r", "signature_refused", Suspicion.BAD_SIGNATURE)
    assert not reputation.is_known("")
    assert not reputation.is_banned("")
    over = guard.refusal(None, None, "r")
    assert over is not None
    assert over.status == 429
