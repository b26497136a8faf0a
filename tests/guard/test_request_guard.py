"""The guard without a server: what is held against whom."""

from paidonce.core.events import SourceId
from paidonce.guard.addresses import Addresses
from paidonce.guard.bans import BanPolicy, Suspicion
from paidonce.guard.request_guard import FLOOD, Limits, RequestGuard
from paidonce.guard.security_log import SecurityLog
from paidonce.guard.senders import SenderRecords
from paidonce.settings.sections import LimitsSettings

STRANGER, NAMED = "192.0.2.1", "198.51.100.7"
POLICY = BanPolicy(threshold=3.0, half_life_s=600.0, first_s=600.0, longest_s=600.0)


async def test_who_has_no_address_is_limited_and_neither_banned_nor_known() -> None:
    """SEC-4: behind a socket of the file system, all are one, and may be anybody."""
    log = SecurityLog()
    senders = SenderRecords(None, POLICY, log)  # type: ignore[arg-type]
    guard = RequestGuard(
        Addresses([], {}), senders, Limits.of(LimitsSettings(unverified="5/day")), log
    )
    for nobody in (None, ""):
        guard.verified(nobody, SourceId(1))
        assert guard.reject(nobody, None, "r") is None
    for _ in range(5):
        guard.failed(None, None, "r", "signature_rejected", Suspicion.BAD_SIGNATURE)
    assert not senders.is_verified_sender("")
    assert not senders.is_banned("")
    over = guard.reject(None, None, "r")
    assert over is not None
    assert over.status == 429


def guarded(policy: BanPolicy = POLICY, *, allow: str = "") -> tuple[RequestGuard, SenderRecords]:
    """A guard whose limit of strangers is five a day, with an allow-list of one source."""
    log = SecurityLog()
    senders = SenderRecords(None, policy, log)  # type: ignore[arg-type]
    addresses = Addresses([], {"shop": [allow]} if allow else {})
    limits = Limits.of(LimitsSettings(unverified="5/day", verified_senders="8/day"))
    return RequestGuard(addresses, senders, limits, log), senders


def forge(guard: RequestGuard, address: str, times: int) -> None:
    for _ in range(times):
        guard.failed(address, None, "r", "signature_rejected", Suspicion.BAD_SIGNATURE)


async def test_what_is_refused_for_a_limit_adds_risk_only_in_a_flood() -> None:
    """SEC-4: it may be the honest deliveries of a gateway whose address somebody else abuses."""
    policy = BanPolicy(threshold=8.0, half_life_s=600.0, first_s=600.0, longest_s=600.0)
    guard, senders = guarded(policy)
    forge(guard, STRANGER, 5)
    for _ in range(FLOOD * 5):
        refused = guard.reject(STRANGER, None, "r")
        assert refused is not None
        assert refused.status == 429
    assert not senders.is_banned(STRANGER)
    for _ in range(10):
        guard.reject(STRANGER, None, "r")
    assert senders.is_banned(STRANGER)


async def test_who_became_known_is_not_refused_for_what_he_did_before() -> None:
    """SEC-4: nor where another process saw his verified delivery."""
    guard, senders = guarded()
    forge(guard, STRANGER, 2)
    senders.verified(STRANGER, SourceId(1))  # as if another process had told it
    forge(guard, STRANGER, 6)
    assert guard.reject(STRANGER, None, "r") is None


async def test_what_an_allow_list_names_is_never_banned() -> None:
    """SEC-2 SEC-4"""
    guard, senders = guarded(allow="198.51.100.0/24")
    forge(guard, NAMED, 7)
    forge(guard, STRANGER, 7)
    assert guard.reject(NAMED, None, "r") is None
    banned = guard.reject(STRANGER, None, "r")
    assert banned is not None
    assert banned.status == 403
    assert not senders.is_banned(NAMED)


async def test_what_nobody_signs_is_limited() -> None:
    """SEC-1 PRV-3: anybody can send as much of it as he likes, and each is asked for."""
    guard, _ = guarded()
    for _ in range(8):
        assert guard.reject(STRANGER, None, "r") is None
        guard.unsigned(STRANGER)
    assert guard.reject(STRANGER, None, "r") is not None
