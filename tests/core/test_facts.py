"""Facts only grow: merging, the status table, and every order of a payment's life."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, count, permutations, product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.decide import decide
from paidonce.core.events import (
    Code,
    EventStatus,
    EventType,
    ExternalId,
    Ignored,
    PaymentEvent,
    ReceivedEvent,
    Refund,
    SourceId,
    UserId,
)
from paidonce.core.facts import (
    Facts,
    PaymentStatus,
    facts_from_event,
    merge,
    settle_foreign_refunds,
)
from paidonce.core.money import Money
from paidonce.core.payments import Payment
from paidonce.core.plans import Plan, plan_book
from paidonce.core.refunds import gateway_total, refunded_sum
from paidonce.core.state import Decision, State
from paidonce.core.subscriptions import Subscription

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SOURCE = SourceId(1)
PAYMENT = (ExternalId("payment", "p-1"),)
USER = UserId(UUID(int=77))
EMAIL = "buyer@example.com"
PRICE = Money(99_000, "RUB")
PLANS = plan_book(
    [
        Plan("monthly", PRICE, "default", 30, 0, True, NOW - timedelta(days=900)),
        Plan("yearly", Money(990_000, "RUB"), "default", 0, 12, False, NOW - timedelta(days=900)),
    ]
)

times = st.none() | st.integers(0, 10).map(lambda hours: NOW + timedelta(hours=hours))
currencies = st.sampled_from(["RUB", "USD", "KRW"])
amounts = st.builds(Money, st.integers(0, 5), currencies)


def with_refunds(known: Facts, total: int, single: dict[str, int], currency: str) -> Facts:
    """The facts with refunds, in the currency of the capture if there is one."""
    keys = [*([f"={total}"] if total else []), *(f"#{name}" for name in single)]
    has_currency = known.captured is not None or not keys
    return replace(
        known,
        refund_total_minor=total,
        refunds=single,
        refund_currency=None if has_currency else currency,
        refund_times=dict.fromkeys(keys, known.refunded_at or NOW),
    )


facts = st.builds(
    with_refunds,
    st.builds(
        Facts,
        captured=st.none() | amounts,
        paid_at=times,
        failed_at=times,
        voided_at=times,
        canceled_at=times,
        refunded_at=times,
        processing_at=times,
        disputed_at=times,
        dispute_won_at=times,
    ),
    st.integers(0, 5),
    st.dictionaries(
        st.sampled_from(["a", "b", "dispute:a", "operator:a", "outside:a"]), st.integers(0, 5)
    ),
    currencies,
)


def in_time_or_not(known: Facts, is_expired: bool) -> Facts:
    """The facts, their money known in time or too late. When it was paid is known with the sum."""
    has_money = known.captured is not None
    paid_at = known.paid_at if has_money else None
    return replace(known, paid_at=paid_at, is_expired=is_expired and has_money)


timed_facts = st.builds(in_time_or_not, facts, st.booleans())


def grown(one: Facts, other: Facts, is_settled: bool) -> Facts:
    """Facts of several events; an operator may have dealt with refunds in other currencies."""
    both = merge(one, other)
    return settle_foreign_refunds(both) if is_settled else both


grown_facts = timed_facts | st.builds(grown, timed_facts, timed_facts, st.booleans())


@given(grown_facts, grown_facts)
def test_merging_is_commutative(one: Facts, other: Facts) -> None:
    """PAY-2"""
    assert merge(one, other) == merge(other, one)


@given(grown_facts, grown_facts, grown_facts)
def test_merging_is_associative(one: Facts, other: Facts, third: Facts) -> None:
    """PAY-2"""
    assert merge(merge(one, other), third) == merge(one, merge(other, third))


@given(grown_facts, grown_facts)
def test_merging_is_idempotent(one: Facts, other: Facts) -> None:
    """PAY-2"""
    assert merge(one, one) == one
    both = merge(one, other)
    assert merge(both, other) == merge(both, one) == both


@given(grown_facts)
def test_merging_empty_facts_changes_nothing(one: Facts) -> None:
    """PAY-2"""
    assert merge(one, Facts()) == merge(Facts(), one) == one


@given(facts, facts)
def test_merged_facts_only_grow(one: Facts, other: Facts) -> None:
    """PAY-2"""
    both = merge(one, other)
    assert both.captured_minor >= max(one.captured_minor, other.captured_minor)
    of_same = [each for each in (one, other) if each.currency == both.currency]
    assert both.refunded_minor >= max((each.refunded_minor for each in of_same), default=0)
    for name in ("paid_at", "failed_at", "voided_at", "canceled_at", "refunded_at"):
        known = [time for time in (getattr(one, name), getattr(other, name)) if time]
        assert getattr(both, name) == min(known, default=None)
    for name in ("disputed_at", "dispute_won_at"):
        known = [time for time in (getattr(one, name), getattr(other, name)) if time]
        assert getattr(both, name) == max(known, default=None)


@given(timed_facts, timed_facts)
def test_a_timely_capture_outranks_an_expired_one(one: Facts, other: Facts) -> None:
    """PAY-2 PRV-8: whatever the sum; what came too late is all that is known, or does not count."""
    both = merge(one, other)
    in_time = [each for each in (one, other) if each.has_timely_capture]
    told = in_time or [each for each in (one, other) if each.is_expired]
    assert both.has_timely_capture == bool(in_time)
    assert both.is_expired == (bool(told) and not in_time)
    assert both.captured == max((each.captured for each in told if each.captured), default=None)
    assert both.paid_at == min((each.paid_at for each in told if each.paid_at), default=None)


def test_a_refund_of_a_captured_payment_sets_no_refund_currency() -> None:
    """PAY-2: it is the payment's, or a repeat would look new, and be written again."""
    refund = PaymentEvent(EventType.REFUNDED, PAYMENT, refunded=PRICE)
    paid = PaymentEvent(EventType.PAID, PAYMENT, PRICE)
    alone, both = facts_from_event(refund, NOW), replace(refund, amount=PRICE)
    assert alone.refund_currency == "RUB"
    assert merge(alone, facts_from_event(paid, NOW)).refund_currency is None
    assert facts_from_event(both, NOW).refund_currency is None


def test_what_operators_and_the_gateway_report_counts_once() -> None:
    """PAY-13: the larger of both, with lost disputes; what the gateway does not know is added."""
    operators = {"operator:a": 300, "operator:b": 200}
    assert Facts(refunds=operators).refunded_minor == 500
    assert Facts(refund_total_minor=400, refunds=operators).refunded_minor == 500
    lost = {**operators, "dispute:d": 150}
    assert Facts(refund_total_minor=400, refunds=lost).refunded_minor == 550
    outside = {**lost, "outside:cash": 50, "re_1": 450}
    assert Facts(refund_total_minor=400, refunds=outside).refunded_minor == 650


@given(
    total=st.integers(0, 5),
    refunds=st.dictionaries(
        st.sampled_from(["a", "b", "dispute:a", "operator:a", "operator:b", "outside:a"]),
        st.integers(0, 5),
    ),
)
def test_what_was_refunded_survives_being_stored(total: int, refunds: dict[str, int]) -> None:
    """PAY-2 PAY-13: also if the id of a refund belongs to another payment."""
    refunded = refunded_sum(total, refunds)
    assert refunded_sum(gateway_total(total, refunds, refunded), refunds) == refunded
    known = {name: one for name, one in refunds.items() if name != "a"}
    assert refunded_sum(gateway_total(total, known, refunded), known) == refunded


def test_distinct_refunds_add_up_and_repeats_do_not() -> None:
    """PAY-2"""
    first, second = Facts(refunds={"r-1": 300}), Facts(refunds={"r-2": 200})
    assert merge(merge(first, second), first).refunded_minor == 500
    assert merge(merge(first, second), Facts(refund_total_minor=600)).refunded_minor == 600
    assert merge(merge(first, second), Facts(refund_total_minor=400)).refunded_minor == 500


def table(
    captured: int, refunded: int, failed: bool, voided: bool, canceled: bool, processing: bool
) -> PaymentStatus:
    """PAY-2's table, written from the specification and not from the program."""
    if captured == 0:
        for is_so, status in (
            (voided, PaymentStatus.CANCELED),
            (failed, PaymentStatus.FAILED),
            (processing, PaymentStatus.PROCESSING),
        ):
            if is_so:
                return status
        return PaymentStatus.PENDING
    for is_so, status in (
        (refunded >= captured, PaymentStatus.REFUNDED),
        (canceled, PaymentStatus.CANCELED),
        (refunded > 0, PaymentStatus.PARTIALLY_REFUNDED),
    ):
        if is_so:
            return status
    return PaymentStatus.SUCCEEDED


def test_the_status_is_what_the_table_says_for_all_facts() -> None:
    """PAY-2"""
    seen = set()
    flags = (False, True)
    sums = product((0, 1, 10), (0, 1, 5, 10, 11))
    for (captured, refunded), said in product(sums, product(flags, flags, flags, flags)):
        failed, voided, canceled, processing = said
        for by_ids in flags:
            known = Facts(
                captured=Money(captured, "RUB") if captured else None,
                refund_total_minor=0 if by_ids else refunded,
                refunds={"r": refunded} if by_ids else {},
                paid_at=NOW if captured else None,
                failed_at=NOW if failed else None,
                voided_at=NOW if voided else None,
                canceled_at=NOW if canceled else None,
                processing_at=NOW if processing else None,
            )
            expected = table(captured, refunded, failed, voided, canceled, processing)
            assert known.status is expected, known
            seen.add(expected)
    assert seen == set(PaymentStatus)


def event_type(what: EventType, amount: Money | None = None, **more: object) -> PaymentEvent:
    return replace(
        PaymentEvent(what, PAYMENT, amount=amount, email=EMAIL),
        **more,  # type: ignore[arg-type]
    )


PENDING = event_type(EventType.PENDING)
PROCESSING = event_type(EventType.PROCESSING)
PAID = event_type(EventType.PAID, PRICE)
FAILED = event_type(EventType.FAILED)
VOIDED = event_type(EventType.VOIDED)
CANCELED = event_type(EventType.CANCELED)
SOME_BACK = event_type(EventType.REFUNDED, refund=Refund("r-1", Money(1_000, "RUB")))
MORE_BACK = event_type(EventType.REFUNDED, refund=Refund("r-2", Money(2_000, "RUB")))
ALL_BACK = event_type(EventType.REFUNDED, refunded=PRICE)
MONEY_BACK = (EventType.CANCELED, EventType.REFUNDED)


@dataclass
class Life:
    """A payment's life: events go in one by one, each a minute after the other."""

    with_user: bool = True
    state: State = field(init=False)
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = count(1)
        users = {EMAIL: USER} if self.with_user else {}
        self.state = State(PLANS, lambda: UUID(int=next(ids)), users=users)

    def hears(self, *events: PaymentEvent) -> "Life":
        for event in events:
            # When it arrived must not matter, so that the orders can be compared.
            arrived = ReceivedEvent(SOURCE, event, NOW, link_by_email=True)
            decision = decide(self.state, arrived, NOW)
            self.state.save(decision)
            self.decisions.append(decision)
        return self

    @property
    def payment(self) -> Payment:
        (found,) = self.state.find_payments(SOURCE, PAYMENT)
        return found

    @property
    def subscription(self) -> Subscription | None:
        return self.state.subscriptions.get((USER, "default"))

    @property
    def applied_times(self) -> int:
        return sum(decision.has_applied for decision in self.decisions)


LIVES = {
    "success": (PENDING, PROCESSING, PAID, PAID, FAILED),
    "second try": (PENDING, FAILED, PROCESSING, PAID, VOIDED),
    "given up": (PENDING, PROCESSING, FAILED, FAILED, VOIDED),
    "refunded in parts": (PENDING, PAID, SOME_BACK, MORE_BACK, SOME_BACK, FAILED),
    "refunded": (PROCESSING, PAID, SOME_BACK, ALL_BACK, ALL_BACK),
    "returned": (PENDING, PAID, CANCELED, CANCELED, VOIDED, PROCESSING),
    "everything": (PENDING, PAID, FAILED, VOIDED, CANCELED, SOME_BACK),
    "duplicates": (PAID, PAID, PAID, FAILED, PENDING, PAID),
}


def orders(life: Sequence[PaymentEvent]) -> Iterator[tuple[PaymentEvent, ...]]:
    return iter(dict.fromkeys(permutations(life)))


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_every_order_of_arrival_ends_in_the_same_facts(life: Sequence[PaymentEvent]) -> None:
    """PAY-2"""
    expected = Life().hears(*life).payment.facts
    for order in orders(life):
        assert Life().hears(*order).payment.facts == expected, [event.event_type for event in order]


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_the_final_status_is_computed_from_the_events(life: Sequence[PaymentEvent]) -> None:
    """PAY-2"""
    said = [event.event_type for event in life]
    distinct = {event.refund.id: event.refund.amount.amount_minor for event in life if event.refund}
    total = max((event.refunded.amount_minor for event in life if event.refunded), default=0)
    expected = table(
        captured=PRICE.amount_minor if EventType.PAID in said else 0,
        refunded=max(total, sum(distinct.values())),
        failed=EventType.FAILED in said,
        voided=EventType.VOIDED in said,
        canceled=EventType.CANCELED in said,
        processing=EventType.PROCESSING in said,
    )
    assert Life().hears(*life).payment.facts.status is expected


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_no_order_of_arrival_applies_a_payment_twice(life: Sequence[PaymentEvent]) -> None:
    """PAY-3"""
    for order in orders(life):
        lived = Life().hears(*order)
        given = [one for one in lived.decisions if one.has_applied and one.subscription]
        assert lived.applied_times == len(given) <= 1
        first = next(
            (n for n, event in enumerate(order) if event.event_type is EventType.PAID), len(order)
        )
        back_first = any(
            event.event_type is EventType.CANCELED or event == ALL_BACK for event in order[:first]
        )
        is_paid = EventType.PAID in (event.event_type for event in order)
        assert lived.applied_times == (is_paid and not back_first), [
            one.event_type for one in order
        ]


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_every_order_in_which_the_money_stayed_first_ends_in_the_same_rows(
    life: Sequence[PaymentEvent],
) -> None:
    """PAY-2 PAY-3: payment and subscription agree too, where no refund overtook the payment."""
    in_order = [
        order
        for order in orders(life)
        if not _money_back_before_paid([event.event_type for event in order])
    ]
    rows = [
        (lived.payment.facts, _row(lived.payment), _end(lived.subscription))
        for lived in (Life().hears(*order) for order in in_order)
    ]
    assert all(row == rows[0] for row in rows)


def _money_back_before_paid(said: Sequence[EventType]) -> bool:
    paid = said.index(EventType.PAID) if EventType.PAID in said else len(said)
    return any(one in MONEY_BACK for one in said[:paid])


def _row(payment: Payment) -> tuple[object, ...]:
    """All of a payment but its ids, which are drawn anew in each life."""
    return (
        payment.email,
        payment.user_id,
        payment.plan_id,
        payment.applied_at,
        payment.period_start,
        payment.period_end,
        payment.review,
    )


def _end(subscription: Subscription | None) -> datetime | None:
    return subscription.current_period_end if subscription else None


@pytest.mark.parametrize(
    ("life", "review"),
    [
        ((PAID, ALL_BACK), None),
        ((PAID, CANCELED), None),
        ((event_type(EventType.PAID, Money(1, "RUB")), ALL_BACK), Code.REFUND_EXCESS),
    ],
    ids=["refunded", "canceled", "more refunded than paid"],
)
def test_an_unapplied_payment_needs_the_same_review_in_every_order(
    life: Sequence[PaymentEvent], review: Code | None
) -> None:
    """PAY-2 PAY-12: the row is the same in the end, and money that went back waits for nobody."""
    reviews = {Life(with_user=False).hears(*order).payment.review for order in orders(life)}
    assert reviews == {review}


def back(minor: int, currency: str, refund_id: str | None = None) -> PaymentEvent:
    """A refund: a total, or a single one with an id."""
    money = Money(minor, currency)
    if refund_id is None:
        return event_type(EventType.REFUNDED, refunded=money)
    return event_type(EventType.REFUNDED, refund=Refund(refund_id, money))


REFUNDS = [
    back(500, "EUR"),
    back(700, "EUR", "r-e"),
    back(900, "USD"),
    back(2_000, "RUB"),
    back(3_000, "RUB", "r-r"),
]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_refunds_in_another_currency_end_alike_in_every_order(number: int) -> None:
    """PAY-12 PAY-2: not subtracted, whatever was known when they came; a person looks at them."""
    for chosen in combinations(REFUNDS, number):
        lives = [Life().hears(*order) for order in permutations((PAID, *chosen))]
        ends = [life.payment for life in lives]
        assert all(end.facts == ends[0].facts for end in ends)
        own = [
            minor for one, minor in zip(REFUNDS[3:], (2_000, 3_000), strict=True) if one in chosen
        ]
        assert ends[0].facts.refunded_minor == max(own, default=0)
        review = Code.REFUND_CURRENCY_MISMATCH if len(own) < number else None
        assert {end.review for end in ends} == {review}
        assert {end.applied_at for end in ends} == {NOW}
        assert not any(end.is_contested for end in ends)


@pytest.mark.parametrize("refund", REFUNDS[:2], ids=["total", "single"])
def test_the_refund_fails_and_the_payment_does_not(refund: PaymentEvent) -> None:
    """PAY-12: the event that brings the mismatch without an effect fails."""
    outcomes = [one.outcome for one in Life().hears(PAID, refund, refund).decisions]
    assert [one.code for one in outcomes] == [None, *[Code.REFUND_CURRENCY_MISMATCH] * 2]
    assert outcomes[-1].status is EventStatus.FAILED_FINAL
    assert [one.outcome.code for one in Life().hears(refund, PAID).decisions] == [None, None]
    both = replace(refund, amount=PRICE)
    assert Life().hears(both).payment.review is Code.REFUND_CURRENCY_MISMATCH


@pytest.mark.parametrize("refunds", list(permutations(REFUNDS[:3])))
def test_a_capture_in_their_currency_makes_them_its_own(refunds: Sequence[PaymentEvent]) -> None:
    """PAY-12 PAY-2: until then nobody knows which refund is foreign."""
    paid_in_euro = replace(PAID, amount=Money(5_000, "EUR"))
    for life in ((*refunds, paid_in_euro), (paid_in_euro, *refunds)):
        found = Life().hears(*life).payment.facts
        assert (found.currency, found.refunded_minor) == ("EUR", 700)
        assert found.has_foreign_refund


def test_a_settled_refund_stays_settled_when_the_currency_changes_twice() -> None:
    """PAY-12 PAY-2: from foreign to the payment's own, and to foreign again."""
    in_euro, in_roubles = (
        Facts(captured=Money(*sum_), paid_at=NOW) for sum_ in ((2, "EUR"), (3, "RUB"))
    )
    first = merge(Facts(captured=Money(1, "RUB"), paid_at=NOW), facts_from_event(REFUNDS[1], NOW))
    assert first.has_foreign_refund
    settled = settle_foreign_refunds(first)
    own = merge(settled, in_euro)
    assert (own.refunds, own.has_foreign_refund) == ({"r-e": 700}, False)
    again = merge(own, in_roubles)
    assert again == merge(settled, merge(in_euro, in_roubles))
    assert (again.refunds, again.has_foreign_refund) == ({}, False)
    assert merge(again, facts_from_event(REFUNDS[0], NOW)).has_foreign_refund


@pytest.mark.parametrize("late", [FAILED, VOIDED, PENDING, PROCESSING])
def test_an_event_behind_a_paid_payment_is_out_of_order(late: PaymentEvent) -> None:
    """PAY-2 S2"""
    lived = Life().hears(PAID, late)
    outcome = lived.decisions[-1].outcome
    assert (outcome.status, outcome.code) == (EventStatus.IGNORED, Code.OUT_OF_ORDER)
    assert lived.payment.facts.status is PaymentStatus.SUCCEEDED
    assert lived.payment.applied_at == NOW


@pytest.mark.parametrize("announced", [EventType.PENDING, EventType.FAILED])
def test_a_looked_up_event_that_is_behind_is_out_of_order_if_it_adds_nothing(
    announced: EventType,
) -> None:
    """PAY-2: the gateway says what became of the payment, and all of that is known."""
    looked_up = replace(PAID, announced=announced)
    lived = Life().hears(PAID, looked_up)
    outcome = lived.decisions[-1].outcome
    assert (outcome.status, outcome.code) == (EventStatus.IGNORED, Code.OUT_OF_ORDER)
    assert lived.payment.applied_at == NOW
    refunded = replace(ALL_BACK, announced=announced)
    for life in ((looked_up,), (PENDING, looked_up), (PAID, refunded)):
        assert Life().hears(*life).decisions[-1].outcome.status is EventStatus.PROCESSED


def test_a_late_looked_up_event_does_not_fail_for_the_amount() -> None:
    """PAY-2 PAY-4: the event that brought the amount has failed for it."""
    wrong = replace(PAID, amount=Money(1, "RUB"))
    lived = Life().hears(wrong, replace(wrong, announced=EventType.FAILED))
    codes = [one.outcome.code for one in lived.decisions]
    assert codes == [Code.AMOUNT_MISMATCH, Code.OUT_OF_ORDER]
    assert lived.payment.review is Code.AMOUNT_MISMATCH


@pytest.mark.parametrize(
    ("known", "late"),
    [(FAILED, PENDING), (FAILED, PROCESSING), (VOIDED, FAILED), (PROCESSING, PENDING)],
)
def test_an_event_behind_an_unpaid_payment_is_out_of_order(
    known: PaymentEvent, late: PaymentEvent
) -> None:
    """PAY-2"""
    lived = Life().hears(known)
    status = lived.payment.facts.status
    outcome = lived.hears(late).decisions[-1].outcome
    assert (outcome.status, outcome.code) == (EventStatus.IGNORED, Code.OUT_OF_ORDER)
    assert lived.payment.facts.status is status


@pytest.mark.parametrize("event", [PENDING, PROCESSING, PAID, FAILED, VOIDED, CANCELED, ALL_BACK])
def test_a_fact_that_is_new_or_repeated_is_processed(event: PaymentEvent) -> None:
    """PAY-2"""
    lived = Life().hears(event, event)
    assert [one.outcome.status for one in lived.decisions] == [EventStatus.PROCESSED] * 2


def test_failed_first_and_paid_later_succeeds() -> None:
    """PAY-2"""
    lived = Life().hears(FAILED, PAID)
    assert lived.payment.facts.status is PaymentStatus.SUCCEEDED
    assert (lived.payment.applied_at, lived.applied_times) == (NOW, 1)
    assert lived.payment.facts.failed_at == NOW


@pytest.mark.parametrize("first", [ALL_BACK, CANCELED])
def test_money_that_went_back_before_it_came_is_never_applied(first: PaymentEvent) -> None:
    """PAY-2 PAY-3 PAY-6"""
    lived = Life().hears(first, PAID, PAID)
    assert lived.payment.applied_at is None
    assert lived.subscription is None
    assert lived.payment.facts.captured == PRICE


def test_a_refund_before_its_payment_is_remembered() -> None:
    """PAY-6"""
    lived = Life().hears(SOME_BACK)
    first = lived.payment.facts.status
    last = lived.hears(PAID).payment.facts.status
    assert (first, last) == (PaymentStatus.PENDING, PaymentStatus.PARTIALLY_REFUNDED)
    assert lived.applied_times == 1


def test_an_ignored_event_makes_no_payment() -> None:
    """PAY-2: S0's other statuses."""
    state = Life().state
    ignored = Ignored(Code.NON_SUCCESS_STATUS, "the status is 'pending'")
    decision = decide(state, ReceivedEvent(SOURCE, ignored, NOW, True), NOW)
    assert decision.payment is None
    assert decision.outcome.status is EventStatus.IGNORED
    assert decision.outcome.code is Code.NON_SUCCESS_STATUS


def paid(amount_minor: int, currency: str = "RUB", **more: object) -> PaymentEvent:
    return event_type(EventType.PAID, Money(amount_minor, currency), **more)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (paid(98_998), Code.AMOUNT_MISMATCH),
        (paid(99_002), Code.AMOUNT_MISMATCH),
        (paid(0), Code.AMOUNT_MISMATCH),
        (paid(99_000, "USD"), Code.CURRENCY_MISMATCH),
        (paid(99_000, plan_id="weekly"), Code.PLAN_UNKNOWN),
        (paid(99_000, plan_id="yearly"), Code.AMOUNT_MISMATCH),
    ],
    ids=["less", "more", "nothing", "currency", "unknown plan", "other plan"],
)
def test_money_that_does_not_match_is_kept_and_not_applied(event: PaymentEvent, code: Code) -> None:
    """PAY-4"""
    lived = Life().hears(event)
    outcome = lived.decisions[-1].outcome
    assert (outcome.status, outcome.code) == (EventStatus.FAILED_FINAL, code)
    assert lived.payment.applied_at is None
    assert lived.payment.review is code
    assert lived.payment.facts.captured == event.amount
    assert lived.subscription is None


@pytest.mark.parametrize("amount_minor", [98_999, 99_000, 99_001])
def test_a_hundredth_of_a_unit_is_forgiven(amount_minor: int) -> None:
    """PAY-4"""
    assert Life().hears(paid(amount_minor)).applied_times == 1


SIBLINGS = [paid(50_000), paid(150_000), paid(99_000, "USD"), paid(1, "USD"), paid(500_000, "KRW")]


@pytest.mark.parametrize("other", SIBLINGS, ids=lambda event: str(event.amount))
@pytest.mark.parametrize("with_user", [True, False], ids=["linked", "unlinked"])
def test_a_matching_and_a_mismatching_sibling_end_alike_in_both_orders(
    other: PaymentEvent, with_user: bool
) -> None:
    """PAY-2 PAY-3 PAY-4"""
    one_way = Life(with_user).hears(PAID, other)
    other_way = Life(with_user).hears(other, PAID)
    assert one_way.payment.facts == other_way.payment.facts
    assert one_way.applied_times == other_way.applied_times == with_user
    assert _row(one_way.payment) == _row(other_way.payment)
    assert _end(one_way.subscription) == _end(other_way.subscription)
    if with_user:
        finals = [one.outcome.status for one in (one_way.decisions[1], other_way.decisions[0])]
        assert finals == [EventStatus.FAILED_FINAL] * 2


@pytest.mark.parametrize("other", SIBLINGS, ids=lambda event: str(event.amount))
def test_more_captured_than_the_price_is_listed_for_review(other: PaymentEvent) -> None:
    """PAY-7: excess is listed, and less is not."""
    payment = Life().hears(PAID, other).payment
    assert other.amount is not None
    captured = payment.facts.captured
    assert captured == max(PRICE, other.amount)
    assert (payment.review is None) == (captured == PRICE)


def test_the_price_that_counts_is_the_one_when_paid_and_not_when_it_arrived() -> None:
    """PAY-4"""
    change = NOW - timedelta(days=10)
    old = Plan("monthly", PRICE, "default", 30, 0, True, NOW - timedelta(days=900))
    new = replace(old, price=Money(120_000, "RUB"), valid_from=change)
    lived = Life()
    lived.state.plans = plan_book([old, new])
    lived.hears(replace(PAID, occurred_at=change - timedelta(seconds=1)))
    assert lived.applied_times == 1
    late = Life()
    late.state.plans = lived.state.plans
    late.hears(replace(PAID, occurred_at=change))
    assert late.decisions[-1].outcome.code is Code.AMOUNT_MISMATCH


def test_a_payment_without_a_user_waits_for_one() -> None:
    """PAY-5"""
    outcome = Life(with_user=False).hears(PAID).decisions[-1].outcome
    assert (outcome.status, outcome.code) == (EventStatus.FAILED_RETRYABLE, Code.USER_MISSING)


def test_a_payment_without_an_address_is_unlinked() -> None:
    """PAY-5"""
    outcome = Life().hears(replace(PAID, email=None)).decisions[-1].outcome
    assert (outcome.status, outcome.code) == (EventStatus.FAILED_RETRYABLE, Code.UNLINKED_PAYMENT)


@pytest.mark.parametrize("amount", [Money(1, "RUB"), Money(99_000, "EUR")], ids=str)
def test_a_payment_without_purpose_has_no_price_mismatch(amount: Money) -> None:
    """PAY-4 PAY-5: what it is for, an order's sum perhaps, is said later. A plan has its price."""
    nameless = replace(PAID, email=None, amount=amount)
    lived = Life().hears(nameless)
    outcome, review = lived.decisions[-1].outcome, lived.payment.review
    assert (outcome.status, outcome.code) == (EventStatus.FAILED_RETRYABLE, Code.UNLINKED_PAYMENT)
    assert review is Code.UNLINKED_PAYMENT
    wrong = Life().hears(replace(nameless, plan_id="monthly")).decisions[-1].outcome
    assert wrong.code in (Code.AMOUNT_MISMATCH, Code.CURRENCY_MISMATCH)
    without_plans = Life()
    without_plans.state.plans = plan_book([])
    outcome = without_plans.hears(nameless).decisions[-1].outcome
    assert outcome.code is Code.UNLINKED_PAYMENT


def test_a_source_that_does_not_link_by_e_mail_never_does() -> None:
    """PAY-5"""
    decision = decide(Life().state, ReceivedEvent(SOURCE, PAID, NOW, link_by_email=False), NOW)
    assert decision.outcome.code is Code.UNLINKED_PAYMENT
    assert not decision.has_applied


def test_a_later_event_that_brings_the_address_applies_the_payment() -> None:
    """PAY-5: then it has said something new, whatever else it says."""
    lived = Life().hears(replace(PAID, email=None), PENDING)
    assert lived.payment.applied_at == NOW
    assert lived.decisions[-1].outcome.status is EventStatus.PROCESSED


def test_payments_of_two_sources_are_never_the_same() -> None:
    """PAY-1"""
    lived = Life().hears(PAID)
    decision = decide(lived.state, ReceivedEvent(SourceId(2), FAILED, NOW, True), NOW)
    assert decision.payment_before is None
    assert decision.payment is not None
    assert decision.payment.facts.status is PaymentStatus.FAILED


def test_an_event_without_a_time_happened_when_it_arrived() -> None:
    """PAY-1"""
    earlier = NOW - timedelta(days=3)
    assert facts_from_event(PAID, NOW).paid_at == NOW
    assert facts_from_event(replace(PAID, occurred_at=earlier), NOW).paid_at == earlier


def test_a_second_payment_of_one_user_extends_the_same_subscription() -> None:
    """FUL-1 PAY-3"""
    lived = Life().hears(PAID, replace(PAID, ids=(ExternalId("payment", "p-2"),)))
    assert lived.applied_times == 2
    assert lived.subscription is not None
    assert lived.subscription.current_period_end == NOW + timedelta(days=60)


@given(st.permutations([0, 1, 2, 3]))
def test_a_won_dispute_is_cleared_in_any_order(order: list[int]) -> None:
    """PAY-2: until there is another one; the money is not touched by the flag."""
    told = [
        event_type(EventType.DISPUTED, occurred_at=NOW),
        event_type(EventType.DISPUTE_WON, occurred_at=NOW + timedelta(hours=1)),
        PAID,
        event_type(EventType.DISPUTED, occurred_at=NOW + timedelta(minutes=1)),
    ]
    known = Life().hears(*(told[one] for one in order)).payment
    assert not known.facts.is_disputed
    assert known.facts.disputed_at == NOW + timedelta(minutes=1)
    assert known.facts.status is PaymentStatus.SUCCEEDED
    assert known.applied_at is not None
    again = event_type(EventType.DISPUTED, occurred_at=NOW + timedelta(hours=2))
    assert merge(known.facts, facts_from_event(again, NOW)).is_disputed


def test_a_dispute_that_is_lost_is_a_refund() -> None:
    """PAY-2 FUL-4"""
    disputed = event_type(EventType.DISPUTED, occurred_at=NOW)
    lived = Life().hears(PAID, disputed)
    assert (lived.payment.facts.is_disputed, lived.payment.reversed_minor) == (True, 0)
    lived.hears(ALL_BACK)
    assert lived.payment.facts.status is PaymentStatus.REFUNDED
    assert _end(lived.subscription) == NOW
