"""How handlers are registered, and what they are called for (FUL-5)."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

import paidonce
from paidonce.core.apply import ApplyContext, apply
from paidonce.core.decide import decide
from paidonce.core.events import (
    PROCESSED,
    Code,
    EventProblem,
    EventType,
    ExternalId,
    PaymentEvent,
    PaymentId,
    ReceivedEvent,
    SourceId,
    parse_reason,
)
from paidonce.core.facts import Facts
from paidonce.core.money import Money
from paidonce.core.payments import Payment
from paidonce.core.plans import Plan, plan_book
from paidonce.core.state import Applied, Decision, Reinstated, Reversed, State
from paidonce.errors import ConfigurationError
from paidonce.hooks import registry
from paidonce.hooks.registry import (
    HookEvent,
    HookType,
    hook_calls,
    import_handlers,
    registered_handlers,
)

NOW: Final = datetime(2026, 11, 16, tzinfo=UTC)
PAID: Final = Money(99_000, "RUB")
PLAN: Final = Plan("monthly", PAID, "default", 30, 0, True, NOW - timedelta(days=1))
IDS: Final = (ExternalId("payment", "p"),)


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process."""
    monkeypatch.setattr(registry, "_registered", {one: [] for one in HookType})
    registry._import.cache_clear()
    registry._load.cache_clear()
    yield
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def payment(**facts: Any) -> Payment:
    return Payment(PaymentId(UUID(int=1)), SourceId(1), IDS, Facts(**facts))


async def handler(hook_event: HookEvent) -> None:
    """Does nothing."""


async def other(hook_event: HookEvent) -> None:
    """Does nothing either."""


def test_handlers_are_called_in_the_order_of_their_registration() -> None:
    """FUL-5"""
    assert not registered_handlers()
    assert paidonce.on("payment.succeeded")(handler) is handler
    paidonce.on("payment.succeeded")(other)
    paidonce.on("payment.refunded")(other)
    found = registered_handlers(3.0)
    assert found
    assert found.timeout_s == 3.0
    assert found.by_type[HookType.SUCCEEDED] == (handler, other)
    assert found.by_type[HookType.REFUNDED] == (other,)
    assert found.by_type[HookType.FAILED] == ()


def test_an_unknown_name_and_a_sync_function_are_refused() -> None:
    """FUL-5"""
    with pytest.raises(ConfigurationError, match=r"names are payment\.succeeded"):
        paidonce.on("payment.suceeded")
    with pytest.raises(ConfigurationError, match="async function"):
        paidonce.on("payment.succeeded")(lambda hook_event: None)  # type: ignore[type-var]


def test_an_object_that_can_be_awaited_is_a_handler_too() -> None:
    """FUL-5"""

    class Shop:
        async def __call__(self, hook_event: HookEvent) -> None:
            """Does nothing."""

    shop = Shop()
    paidonce.on("payment.failed")(shop)
    assert registered_handlers().by_type[HookType.FAILED] == (shop,)


MODULE: Final = """
import paidonce

@paidonce.on("payment.succeeded")
async def handler(event): ...
"""


def test_modules_and_entry_points_register_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUL-5"""
    (tmp_path / "own_module.py").write_text(MODULE)
    (tmp_path / "own_package.py").write_text(MODULE)
    (tmp_path / "own_all.py").write_text("import own_module")
    info = tmp_path / "own_shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paidonce.handlers]\nshop = own_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        import_handlers(["own_all"])
        modules = [one.__module__ for one in registered_handlers().by_type[HookType.SUCCEEDED]]
        assert modules == ["own_package", "own_module"]


def test_a_broken_entry_point_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUL-5 USE-3"""
    info = tmp_path / "own_bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paidonce.handlers]\nbad = own_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"own_not_there.*uninstall"):
        import_handlers([])


def test_a_file_that_is_imported_under_two_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUL-5: each of its effects would happen twice."""
    package = tmp_path / "own_twice"
    package.mkdir()
    (package / "own_file.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(package)
    with pytest.raises(ConfigurationError, match="under another name"):
        import_handlers(["own_file", "own_twice.own_file"])


def test_one_function_of_a_factory_may_be_registered_for_each_product() -> None:
    """FUL-5"""

    def made() -> None:
        @paidonce.on("payment.succeeded")
        async def handle(hook_event: HookEvent) -> None:
            """Does nothing."""

    made()
    made()
    assert len(registered_handlers().by_type[HookType.SUCCEEDED]) == 2


def test_the_package_exports_exactly_what_it_lists() -> None:
    """USE-6"""
    for name in paidonce.__all__:
        assert getattr(paidonce, name) is not None
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = paidonce.nothing_such


@pytest.mark.parametrize("after", [-1, timedelta(days=31), float("inf")])
def test_an_invalid_retry_is_refused(after: Any) -> None:
    """FUL-5 RET-1"""
    with pytest.raises((ValueError, OverflowError)):
        paidonce.Retry(after=after)


def test_a_retry_takes_seconds_or_a_time() -> None:
    """FUL-5 RET-1"""
    assert paidonce.Retry().after is None
    assert paidonce.Retry(after=0).after == timedelta(0)
    assert paidonce.Retry(after=1.5).after == timedelta(seconds=1.5)
    assert paidonce.Retry(after=timedelta(days=1)).after == timedelta(days=1)


@pytest.mark.parametrize("code", ["", "sold_out", "SOLD OUT", "1ST", "A" * 65, "SOLD\x00"])
def test_a_code_is_a_word_in_capitals(code: str) -> None:
    """FUL-5"""
    with pytest.raises(ValueError, match="A-Z"):
        paidonce.Reject(code)
    assert paidonce.Reject("SOLD_OUT").code == "SOLD_OUT"


def test_our_codes_and_custom_codes_are_distinguished() -> None:
    """FUL-5"""
    assert parse_reason("USER_MISSING") is Code.USER_MISSING
    assert parse_reason("SOLD_OUT") == "SOLD_OUT"


def test_hooks_follow_effects_and_unpaid_statuses() -> None:
    """FUL-5"""
    paid = replace(payment(captured=PAID, failed_at=NOW), applied_minor=77)
    done = (Applied(paid), Reversed(paid, 10, effect_kept=False), Reinstated(paid, 5))
    decision = Decision(PROCESSED, None, paid, effects=done)
    assert list(hook_calls(decision)) == [
        (HookType.SUCCEEDED, paid, Money(77, "RUB")),
        (HookType.REFUNDED, paid, Money(10, "RUB")),
        (HookType.REINSTATED, paid, Money(5, "RUB")),
    ]
    failed, voided = payment(failed_at=NOW), payment(failed_at=NOW, voided_at=NOW)
    assert list(hook_calls(Decision(PROCESSED, payment(), failed))) == [
        (HookType.FAILED, failed, None)
    ]
    assert list(hook_calls(Decision(PROCESSED, failed, voided))) == [
        (HookType.CANCELED, voided, None)
    ]
    silent = [
        Decision(PROCESSED, failed, failed),
        Decision(PROCESSED, None, paid),
        Decision(PROCESSED, None, payment(processing_at=NOW)),
        Decision(PROCESSED, payment(), failed, merged=(failed,)),
        Decision(PROCESSED),
    ]
    assert [list(hook_calls(one)) for one in silent] == [[]] * len(silent)


def test_a_refund_whose_handler_fails_is_stored_and_not_reversed() -> None:
    """FUL-5 FUL-4 PAY-2: also when the event says nothing of what was captured."""
    before = replace(payment(captured=PAID, paid_at=NOW), applied_at=NOW, applied_minor=99_000)
    state = State(plan_book([PLAN]), lambda: UUID(int=9))
    state.add(before)
    event = PaymentEvent(EventType.REFUNDED, IDS, refunded=PAID, occurred_at=NOW)
    held = EventProblem(Code.HANDLER_FAILED, "not now", is_final=False)
    decision = decide(state, ReceivedEvent(SourceId(1), event, NOW, True, held), NOW)
    assert decision.outcome == held.outcome
    assert decision.effects == ()
    assert decision.payment is not None
    assert decision.payment.facts.is_returned
    assert (decision.payment.reversed_minor, decision.payment.review) == (0, Code.HANDLER_FAILED)
    repeated = apply(state, before, decision.payment, ApplyContext(None, True), NOW)
    assert [type(one) for one in repeated.effects] == [Reversed]
