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
from paidonce.domain.applying import Terms, apply
from paidonce.domain.decide import Arrived, decide
from paidonce.domain.events import (
    PROCESSED,
    Code,
    ExternalId,
    PaymentEvent,
    PaymentId,
    Problem,
    Says,
    SourceId,
    reason_of,
)
from paidonce.domain.money import Money
from paidonce.domain.payments import Facts, Payment
from paidonce.domain.plans import Plan, plan_book
from paidonce.domain.state import Applied, Decision, Reversed, State
from paidonce.engine import handlers
from paidonce.engine.handlers import Happened, Occasion, happenings, import_handlers, registered
from paidonce.errors import ConfigurationError

NOW: Final = datetime(2026, 11, 16, tzinfo=UTC)
PAID: Final = Money(99_000, "RUB")
PLAN: Final = Plan("monthly", PAID, "default", 30, 0, True, NOW - timedelta(days=1))
IDS: Final = (ExternalId("payment", "p"),)


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process."""
    monkeypatch.setattr(handlers, "_registered", {one: [] for one in Occasion})
    handlers._import.cache_clear()
    handlers._load.cache_clear()
    yield
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def payment(**facts: Any) -> Payment:
    return Payment(PaymentId(UUID(int=1)), SourceId(1), IDS, Facts(**facts))


async def handler(happened: Happened) -> None:
    """Does nothing."""


async def other(happened: Happened) -> None:
    """Does nothing either."""


def test_handlers_are_called_in_the_order_of_their_registration() -> None:
    """FUL-5"""
    assert not registered()
    assert paidonce.on("payment.succeeded")(handler) is handler
    paidonce.on("payment.succeeded")(other)
    paidonce.on("payment.refunded")(other)
    found = registered(3.0)
    assert found
    assert found.timeout_s == 3.0
    assert found.of[Occasion.SUCCEEDED] == (handler, other)
    assert found.of[Occasion.REFUNDED] == (other,)
    assert found.of[Occasion.FAILED] == ()


def test_a_misspelt_name_and_a_function_that_cannot_wait_are_refused_at_once() -> None:
    """FUL-5"""
    with pytest.raises(ConfigurationError, match=r"names are payment\.succeeded"):
        paidonce.on("payment.suceeded")
    with pytest.raises(ConfigurationError, match="async function"):
        paidonce.on("payment.succeeded")(lambda happened: None)  # type: ignore[type-var]


def test_an_object_that_can_be_awaited_is_a_handler_too() -> None:
    """FUL-5"""

    class Shop:
        async def __call__(self, happened: Happened) -> None:
            """Does nothing."""

    shop = Shop()
    paidonce.on("payment.failed")(shop)
    assert registered().of[Occasion.FAILED] == (shop,)


MODULE: Final = """
import paidonce

@paidonce.on("payment.succeeded")
async def handler(happened): ...
"""


def test_modules_and_entry_points_register_theirs_once(
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
        modules = [one.__module__ for one in registered().of[Occasion.SUCCEEDED]]
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
        async def handle(happened: Happened) -> None:
            """Does nothing."""

    made()
    made()
    assert len(registered().of[Occasion.SUCCEEDED]) == 2


def test_the_package_has_what_it_names_and_nothing_else() -> None:
    """USE-6"""
    for name in paidonce.__all__:
        assert getattr(paidonce, name) is not None
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = paidonce.nothing_such


@pytest.mark.parametrize("after", [-1, timedelta(days=31), float("inf")])
def test_a_retry_that_makes_no_sense_is_refused(after: Any) -> None:
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


def test_codes_of_ours_and_of_others_are_told_apart() -> None:
    """FUL-5"""
    assert reason_of("USER_MISSING") is Code.USER_MISSING
    assert reason_of("SOLD_OUT") == "SOLD_OUT"


def test_what_was_done_is_told_and_what_was_reached_without_money() -> None:
    """FUL-5"""
    paid = payment(captured=PAID, failed_at=NOW)
    done = (Applied(paid), Reversed(paid, 10, is_kept=False))
    decision = Decision(PROCESSED, None, paid, done=done)
    assert list(happenings(decision)) == [
        (Occasion.SUCCEEDED, paid, PAID),
        (Occasion.REFUNDED, paid, Money(10, "RUB")),
    ]
    failed, voided = payment(failed_at=NOW), payment(failed_at=NOW, voided_at=NOW)
    assert list(happenings(Decision(PROCESSED, payment(), failed))) == [
        (Occasion.FAILED, failed, None)
    ]
    assert list(happenings(Decision(PROCESSED, failed, voided))) == [
        (Occasion.CANCELED, voided, None)
    ]
    silent = [
        Decision(PROCESSED, failed, failed),
        Decision(PROCESSED, None, paid),
        Decision(PROCESSED, None, payment(processing_at=NOW)),
        Decision(PROCESSED, payment(), failed, absorbed=(failed,)),
        Decision(PROCESSED),
    ]
    assert [list(happenings(one)) for one in silent] == [[]] * len(silent)


def test_a_refund_whose_handler_fails_takes_nothing_back_but_is_known() -> None:
    """FUL-5 FUL-4 PAY-2: also when the event says nothing of what was captured."""
    before = replace(payment(captured=PAID, paid_at=NOW), applied_at=NOW, applied_minor=99_000)
    state = State(plan_book([PLAN], ["monthly"]), lambda: UUID(int=9))
    state.add(before)
    event = PaymentEvent(Says.REFUNDED, IDS, refunded=PAID, occurred_at=NOW)
    held = Problem(Code.HANDLER_FAILED, "not now", is_final=False)
    decision = decide(state, Arrived(SourceId(1), event, NOW, True, held), NOW)
    assert decision.outcome == held.outcome
    assert decision.done == ()
    assert decision.payment is not None
    assert decision.payment.facts.is_returned
    assert (decision.payment.reversed_minor, decision.payment.review) == (0, Code.HANDLER_FAILED)
    repeated = apply(state, before, decision.payment, Terms(None, True), NOW)
    assert [type(one) for one in repeated.done] == [Reversed]
