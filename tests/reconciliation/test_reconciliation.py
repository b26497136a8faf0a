"""A gateway's statement is compared with stored payments; differences are repaired once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.bootstrap.registration import register_source
from paidonce.bootstrap.services import Services
from paidonce.core.actors import Actor, Scope
from paidonce.core.events import EventId, EventType, ExternalId, PaymentEvent
from paidonce.core.money import Money
from paidonce.db import pool
from paidonce.db.queries import Connection
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.events.model import EventQuery
from paidonce.lookup.http_client import HttpTimeouts
from paidonce.lookup.worker import LookupWorker
from paidonce.processing.items import Incoming, Request, Rules, Source
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery, Identity, ProviderConfig, fingerprint, key_digest
from paidonce.providers.portone import v2 as portone
from paidonce.reconciliation import comparison
from paidonce.reconciliation import store as reconciliation_store
from paidonce.reconciliation.model import (
    Difference,
    PaymentCheck,
    ReconciliationQuery,
    ReconciliationReport,
    ReconciliationRequest,
)
from paidonce.reconciliation.worker import MAX_STARTS, ReconciliationWorker, Timer
from paidonce.runtime.leader import Leader
from paidonce.runtime.wakeup import Wakeup
from tests.processing.test_expired_deliveries import late
from tests.providers.cases.standard import whsec
from tests.support.batches import Plain, Stage
from tests.support.portone_server import (
    LIST,
    PAID_AT,
    V1_KEY,
    V1_SECRET,
    V2_SECRET,
    Cancellation,
    Payment,
    PortOneGateway,
    Trouble,
)

QUICK: Final = HttpTimeouts(pauses_s=())
PRICE: Final = 10_000
SINCE: Final = datetime.fromtimestamp(PAID_AT, UTC) - timedelta(hours=1)
UNTIL: Final = SINCE + timedelta(hours=20)
ME: Final = Actor("somebody", Scope.OPERATE)
V2: Final = {"api_secret": V2_SECRET}
V1: Final = {"version": "v1", "api_key": V1_KEY, "api_secret": V1_SECRET}
both_versions = pytest.mark.parametrize("korea", [V2, V1], ids=["v2", "v1"], indirect=True)


@dataclass(frozen=True)
class Korea:
    """A shop and its gateway. An order's reference is the name of its payment, in V1 too."""

    shop: Stage
    gateway: PortOneGateway
    reconciler: ReconciliationWorker
    services: Services

    @property
    def source(self) -> Source:
        return self.shop.source

    async def order(self, *references: str) -> None:
        async with self.shop.database.connection() as connection:
            await connection.executemany(
                "INSERT INTO orders (id, reference, kind, status, amount_minor, currency,"
                " request_hash, version) VALUES ($1, $2, 'order', 'PENDING', $3, 'KRW', '', 1)",
                [(uuid7(), one, PRICE) for one in references],
            )

    async def hear(self, *payments: Payment) -> None:
        """Process their webhooks."""
        processor = Processor(self.shop.database, self.shop.rules)
        items = [self._incoming(one) for one in payments]
        for first in range(0, len(items), 100):
            await processor.process(items[first : first + 100])
        await processor.close()

    async def hear_late(self, *payments: Payment) -> None:
        """Process their webhooks, which arrive too late."""
        processor = Processor(self.shop.database, self.shop.rules)
        await processor.process([late(self._incoming(one)) for one in payments])
        await processor.close()

    def _incoming(self, payment: Payment) -> Incoming:
        key = f"{payment.id}:{payment.status}:{payment.cancelled_minor}"
        is_paid = payment.status == "PAID"
        event = PaymentEvent(
            event_type=EventType.PAID if is_paid else EventType.CANCELED,
            ids=(ExternalId("payment", payment.id),),
            amount=Money(payment.total_minor, payment.currency),
            refunded=None if is_paid else Money(payment.cancelled_minor, payment.currency),
            order=payment.order,
            paid_at=datetime.fromtimestamp(payment.paid_at_s, UTC),
        )
        return Incoming(
            event_id=EventId(uuid7()),
            source=self.source,
            request=Request("request", None, 0.0),
            delivery=Delivery({}, b"", datetime.now(UTC)),
            identity=Identity(key, fingerprint(key), "webhook", None, payment.id, payment.order),
            key=(self.source.id, key_digest(key)),
            event=event,
        )

    async def reconcile(self, dry_run: bool = False, days_ago: int = 0) -> ReconciliationReport:
        """Request a reconciliation and run it to its end."""
        earlier = timedelta(days=days_ago)
        started = await self.start(since=SINCE - earlier, until=UNTIL - earlier, dry_run=dry_run)
        while not (report := await self.services.reconciliations.get(started.id)).is_finished:
            await self.reconciler.run_once()
        return report

    async def start(self, source: str = "kr", **fields: Any) -> ReconciliationReport:
        request = ReconciliationRequest(source=source, **{"since": SINCE} | fields)
        return await self.services.reconciliations.start(request, ME)

    async def events(self) -> int:
        return await self.shop.number("webhook_events")

    async def applied(self) -> int:
        row = await self.shop.one("SELECT count(*) AS n FROM outbox WHERE type = 'payment.applied'")
        return int(row["n"])


@asynccontextmanager
async def opened(
    shop: Stage, gateway: PortOneGateway, options: dict[str, Any]
) -> AsyncIterator[Korea]:
    secrets = () if "version" in options else (whsec("a secret"),)
    setup = ProviderConfig(
        "sources.kr", secrets, {**options, "api_url": gateway.url}, accepts_test=False
    )
    async with shop.database.transaction() as connection:
        source_id = await register_source(connection, "kr", "portone")
    source = Source(source_id, "kr", portone.configure(setup), False, lookup_rate=1_000)
    rules = replace(shop.rules, sources={source_id: source})
    wakeup = Wakeup()
    asker = LookupWorker(shop.database, rules, wakeup)
    asking = asyncio.create_task(asker.run())
    reconciler = ReconciliationWorker(shop.database, rules, wakeup, timeouts=QUICK)
    stage = replace(shop, rules=rules, source=source)
    yield Korea(stage, gateway, reconciler, Services(shop.database, rules))
    asker.finish()
    await asking
    await reconciler.close()


@pytest_asyncio.fixture(loop_scope="session")
async def korea(shop: Stage, request: pytest.FixtureRequest) -> AsyncIterator[Korea]:
    options = getattr(request, "param", V2)
    async with PortOneGateway() as gateway, opened(shop, gateway, options) as korea:
        yield korea


def paid(name: str, number: int = 0, **fields: Any) -> Payment:
    usual = Payment(
        name,
        order=name,
        transaction_id=f"tx-{name}",
        total_minor=PRICE,
        paid_at_s=PAID_AT + number * 30,
    )
    return replace(usual, **fields)


def canceled(payment: Payment, amount_minor: int) -> Payment:
    status = "CANCELLED" if amount_minor == payment.total_minor else "PARTIAL_CANCELLED"
    back = Cancellation(f"c-{payment.id}", amount_minor)
    return replace(payment, status=status, cancellations=(back,))


def found(report: ReconciliationReport) -> dict[str, tuple[str, str | None, bool]]:
    return {one.external_payment_id: (one.kind, one.resolution, one.new) for one in report.findings}


async def test_an_expired_delivery_is_applied_if_the_gateway_confirms_it(korea: Korea) -> None:
    """PAY-9 PRV-8: the statement counts like a delivery in time; what it lacks stays listed."""
    reported, unknown = paid("late"), paid("unknown")
    await korea.order("late", "unknown")
    korea.gateway.add(reported)
    await korea.hear_late(reported, unknown)
    report = await korea.reconcile(dry_run=True)
    assert found(report) == {
        "late": ("behind", None, True),
        "unknown": ("missing_there", None, True),
    }
    assert await korea.applied() == 0
    report = await korea.reconcile()
    assert found(report)["late"] == ("behind", "repaired", False)
    assert await korea.applied() == 1
    assert (await korea.shop.payment("late"))["is_expired"] is False
    assert (await korea.shop.payment("unknown"))["review"] == "TIMESTAMP_EXPIRED"
    assert found(await korea.reconcile()).keys() == {"unknown"}


@both_versions
async def test_all_differences_in_a_thousand_payments_are_found_and_repaired_once(
    korea: Korea,
) -> None:
    """PAY-9: ten webhooks were never sent, five payments differ, three are stored here only."""
    payments = [paid(f"p_{number:04}", number) for number in range(1_000)]
    silent, more, less, other = (
        payments[0:1_000:100],
        payments[1:4],
        payments[5],
        payments[6],
    )
    only_here = [paid(f"only_{number}", number) for number in range(3)]
    await korea.order(*(one.id for one in [*payments, *only_here]))
    korea.gateway.add(*payments)
    korea.gateway.left_out.add("p_0007")
    heard = {one.id: one for one in [*payments, *only_here] if one not in silent}
    heard |= {less.id: replace(less, total_minor=12_000), other.id: replace(other, currency="USD")}
    await korea.hear(*heard.values())
    korea.gateway.add(canceled(more[0], 1_000), canceled(more[1], 2_000), canceled(more[2], PRICE))
    korea.gateway.add(paid("test", is_test=True), paid("unpaid", status="READY"))
    applied = await korea.applied()

    report = await korea.reconcile()
    counted = (report.compared, report.agreed, report.repaired, report.new_findings)
    assert (report.status, *counted) == ("DONE", 1_003, 985, 13, 18)
    left = (report.behind, report.missing_here, report.differs, report.missing_there)
    assert left == (0, 0, 2, 3)
    expected: dict[str, tuple[str, str | None, bool]]
    expected = {one.id: ("missing_here", "repaired", True) for one in silent}
    expected |= {one.id: ("behind", "repaired", True) for one in more}
    expected |= {one.id: ("differs", None, True) for one in (less, other)}
    expected |= {one.id: ("missing_there", None, True) for one in only_here}
    assert found(report) == expected
    (money,) = report.explained
    assert (money.reported, money.explained) == (str(999 * PRICE), str(997 * PRICE))
    assert await korea.applied() == applied + 10

    events = await korea.events()
    again = await korea.reconcile()
    assert (again.compared, again.agreed, again.repaired, again.new_findings) == (1_003, 998, 0, 0)
    assert set(found(again).values()) == {
        ("differs", None, False),
        ("missing_there", None, False),
    }
    assert len(again.findings) == 5
    assert (await korea.events(), await korea.applied()) == (events, applied + 10)


@both_versions
async def test_a_repair_is_an_event_and_a_later_webhook_adds_nothing(
    korea: Korea,
) -> None:
    """PAY-9 OBS-4: its trail says where it came from."""
    await korea.order("late")
    korea.gateway.add(paid("late"))
    report = await korea.reconcile()
    (event,) = (await korea.services.events.search(EventQuery(limit=10))).items
    assert (event.status, event.payment) == ("PROCESSED", "late")
    assert (event.key or "").startswith("reconcile:")
    detail = await korea.services.events.get(event.id)
    (made,) = [one for one in detail.trail if one.action == "reconciliation_repair"]
    assert made.details["reconciliation"] == str(report.id)
    await korea.hear(paid("late"))
    assert (await korea.applied(), await korea.events()) == (1, 2)
    assert (await korea.services.orders.get("late")).status == "PAID"


async def test_a_repaired_payment_that_is_not_applied_is_reported(korea: Korea) -> None:
    """PAY-8 PAY-9: nobody has ordered it."""
    korea.gateway.add(paid("nobodys"))
    report = await korea.reconcile()
    assert (report.repaired, report.needs_review) == (1, False)
    (unapplied,) = report.unapplied
    assert (unapplied.number, unapplied.amount, unapplied.currency) == (1, "10000", "KRW")


async def test_a_repair_without_effect_is_made_once(korea: Korea) -> None:
    """PAY-9 INB-1: the gateway contradicts its own statement, so a person has to look."""
    korea.gateway.add(paid("odd", total_minor=PRICE))
    korea.gateway.misbehave("odd", *[Trouble.UNAUTHORIZED] * 3)
    for is_new in (True, False):
        report = await korea.reconcile()
        assert found(report) == {"odd": ("missing_here", None, is_new)}
        assert "PROVIDER_UNREACHABLE" in report.findings[0].reason
        korea.gateway.misbehave("odd", *[Trouble.UNAUTHORIZED] * 3)
    assert await korea.events() == 1


@pytest.mark.parametrize("status", ["DEAD_LETTER", "FAILED_FINAL"])
async def test_a_failed_repair_is_made_again(korea: Korea, status: str) -> None:
    """PAY-9 RET-3: the gateway was away for longer than it was asked."""
    await korea.order("p")
    korea.gateway.add(paid("p"))
    korea.gateway.misbehave("p", *[Trouble.UNAUTHORIZED] * 3)
    await korea.reconcile()
    async with korea.shop.database.connection() as connection:
        await connection.execute(
            "UPDATE webhook_events SET status = $1, processed_at = now()", status
        )
        await connection.execute("DELETE FROM event_queue")
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_here", "repaired", False)}
    assert (await korea.events(), await korea.applied()) == (1, 1)


async def test_a_dry_run_finds_and_repairs_nothing(korea: Korea) -> None:
    """PAY-9: the next run repairs its findings, which are not new."""
    korea.gateway.add(paid("p"))
    report = await korea.reconcile(dry_run=True)
    assert found(report) == {"p": ("missing_here", None, True)}
    assert (report.needs_review, await korea.events()) == (True, 0)
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_here", "repaired", False)}
    assert (report.repaired, report.new_findings) == (1, 0)


async def test_a_payment_whose_webhook_arrives_meanwhile_is_no_finding(korea: Korea) -> None:
    """PAY-9: its webhook comes while the statement is read."""
    payments = [paid(f"p_{number:03}", number) for number in range(150)]
    korea.gateway.add(*payments)
    await korea.hear(*payments[1:])

    async def nothing() -> None:
        pass

    korea.gateway.then = [nothing, lambda: korea.hear(payments[0])]
    events = await korea.events()
    report = await korea.reconcile()
    assert (report.agreed, report.findings) == (150, [])
    assert await korea.events() == events + 1


@both_versions
async def test_a_refund_that_overtakes_the_statement_is_no_finding(korea: Korea) -> None:
    """PAY-9: the statement is older than the stored payment, so the gateway is asked again."""
    payment = paid("p")
    korea.gateway.add(payment)
    await korea.hear(payment)

    async def refund() -> None:
        korea.gateway.add(canceled(payment, PRICE))
        await korea.hear(canceled(payment, PRICE))

    korea.gateway.then = [refund]
    report = await korea.reconcile()
    assert (report.agreed, report.findings) == (1, [])
    assert korea.gateway.calls["p"] == 1


async def test_a_refund_after_the_statement_of_a_missing_payment_is_no_finding(
    korea: Korea,
) -> None:
    """PAY-9: its repair brings more than the statement reported."""
    payment = paid("p")
    await korea.order("p")
    korea.gateway.add(payment)

    async def refund() -> None:
        korea.gateway.add(canceled(payment, 1_000))

    korea.gateway.then = [refund]
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_here", "repaired", True)}
    assert (report.agreed, report.repaired, report.needs_review) == (0, 1, False)


async def test_a_finding_that_no_longer_holds_is_resolved(korea: Korea) -> None:
    """PAY-9: the gateway knows it after all."""
    await korea.hear(paid("p"))
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_there", None, True)}
    korea.gateway.add(paid("p"))
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_there", "gone", False)}
    assert (report.compared, report.agreed, report.missing_there) == (1, 1, 0)
    korea.gateway.payments.clear()
    assert found(await korea.reconcile()) == {"p": ("missing_there", None, True)}


async def test_open_findings_have_a_limit_of_their_own(
    korea: Korea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAY-9: it fails no later run, and what one leaves is the next one's."""
    a_day = 2_880  # in steps of 30 seconds
    today = [paid(f"today_{number}") for number in range(3)]
    yesterday = [paid(f"yesterday_{number}", -a_day) for number in range(3)]
    await korea.hear(*today, *yesterday)
    assert (await korea.reconcile()).missing_there == 3
    assert (await korea.reconcile(days_ago=1)).missing_there == 6
    monkeypatch.setattr(comparison, "MAX_LOOKUPS", 2)
    monkeypatch.setattr(comparison, "MAX_OPEN_FINDINGS", 4)
    korea.gateway.calls.clear()
    reports = [await korea.reconcile(days_ago=5) for _ in range(3)]
    assert [(one.status, one.missing_there) for one in reports] == [("DONE", 4)] * 3
    assert [korea.gateway.calls[one.id] for one in [*today, *yesterday]] == [2] * 6


async def test_a_late_repair_is_counted_by_the_run_that_sees_it(korea: Korea) -> None:
    """PAY-9: it is one of those that were compared, and no other agrees the less for it."""
    korea.gateway.add(paid("p"))
    korea.gateway.misbehave("p", *[Trouble.UNAUTHORIZED] * 3)
    await korea.reconcile()
    await korea.hear(paid("p"))
    report = await korea.reconcile(days_ago=40)
    assert found(report) == {"p": ("missing_here", "repaired", False)}
    assert (report.compared, report.agreed, report.repaired) == (1, 0, 1)


async def test_findings_with_different_kinds_of_ids_are_separate(korea: Korea) -> None:
    """PAY-9: a gateway may give a payment and a transaction the same one."""
    source_id, run_id = korea.source.id, uuid7()
    ids = [ExternalId("payment", "same"), ExternalId("transaction", "same")]
    async with korea.shop.database.transaction() as connection:
        for one in ids:
            check = PaymentCheck((one,), difference=Difference.MISSING_THERE, reason="why")
            await reconciliation_store.save(connection, run_id, source_id, check)
        await reconciliation_store.save(connection, run_id, source_id, PaymentCheck((ids[0],)))
    kept = await korea.shop.rows(
        "SELECT id_kind, resolution FROM reconciliation_findings ORDER BY id_kind"
    )
    assert [tuple(one.values()) for one in kept] == [("payment", "gone"), ("transaction", None)]


async def test_a_failed_run_keeps_its_findings_and_shows_no_secret(korea: Korea) -> None:
    """PAY-9 SEC-7: and the next one comes to the same end."""
    payments = [paid(f"p_{number:03}", number) for number in range(150)]
    korea.gateway.add(*payments)
    await korea.hear(*payments[1:])
    await korea.hear(paid("only"))

    async def spoil() -> None:
        korea.gateway.misbehave(LIST, Trouble.UNAUTHORIZED)

    korea.gateway.then = [spoil]
    report = await korea.reconcile()
    assert (report.status, report.compared, report.repaired) == ("FAILED", 100, 1)
    assert "api_secret" in (report.error_message or "")
    assert V2_SECRET not in (report.error_message or "")
    assert report.needs_review
    report = await korea.reconcile()
    assert (report.status, report.compared, report.agreed) == ("DONE", 151, 150)
    assert found(report) == {"only": ("missing_there", None, True)}


async def test_unreadable_entries_are_counted_and_do_not_stop_the_run(korea: Korea) -> None:
    """PAY-9"""
    odd = paid("odd", shown={"currency": "???"})
    korea.gateway.add(odd, paid("p", 1))
    report = await korea.reconcile()
    assert (report.compared, report.repaired, report.unreadable) == (1, 1, 1)
    assert report.needs_review


async def test_lookups_stop_if_the_statement_is_of_another_account(
    korea: Korea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAY-9 RET-1: more than some payments that it does not name are too many."""
    monkeypatch.setattr(comparison, "MAX_LOOKUPS", 5)
    await korea.hear(*(paid(f"p_{number}") for number in range(10)))
    report = await korea.reconcile()
    assert report.status == "FAILED"
    assert "same account" in (report.error_message or "")
    assert sum(korea.gateway.calls[f"p_{number}"] for number in range(10)) == 5


async def test_one_process_at_a_time_reconciles_a_source_and_replaces_a_dead_one(
    korea: Korea,
) -> None:
    """PAY-9 RET-4: the lock ends with the session."""
    korea.gateway.add(paid("p"))
    started = await korea.start()
    async with Leader(korea.shop.database).lead(f"reconciliation {korea.source.id}") as leadership:
        assert leadership is not None
        async with leadership.connection() as connection:
            assert await begun(connection, korea)
        assert await korea.reconciler.run_once() == 0
        assert (await korea.services.reconciliations.get(started.id)).status == "RUNNING"
    async with asyncio.timeout(120):
        while await korea.reconciler.run_once() == 0:
            pass
    report = await korea.services.reconciliations.get(started.id)
    assert (report.status, report.repaired) == ("DONE", 1)


async def test_a_run_that_ends_its_process_repeatedly_fails(korea: Korea) -> None:
    """PAY-9 RET-3"""
    started = await korea.start()
    async with korea.shop.database.connection() as connection:
        for _ in range(MAX_STARTS):
            assert await begun(connection, korea)
    assert await korea.reconciler.run_once() == 1
    report = await korea.services.reconciliations.get(started.id)
    assert (report.status, korea.gateway.calls[LIST]) == ("FAILED", 0)


async def test_a_stopped_run_is_left_to_the_next_process(korea: Korea) -> None:
    """PAY-9: and that does not count as a failure."""
    korea.gateway.add(paid("p"))
    korea.gateway.delay(LIST, 60)
    started = await korea.start()
    work = asyncio.create_task(korea.reconciler.run_once())
    async with asyncio.timeout(120):
        while korea.gateway.calls[LIST] == 0:
            await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    (row,) = await korea.shop.rows("SELECT status, starts FROM reconciliations")
    assert (row["status"], row["starts"]) == ("PENDING", 0)
    korea.gateway.delay(LIST, 0)
    assert await korea.reconciler.run_once() == 1
    assert (await korea.services.reconciliations.get(started.id)).status == "DONE"


async def test_an_unavailable_database_does_not_count_as_a_crash(
    korea: Korea,
) -> None:
    """PAY-9 RET-3"""
    korea.gateway.add(paid("p"))
    started = await korea.start()

    async def cut() -> None:
        async with korea.shop.database.connection() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                " AND classid = 716120346 AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            )

    for _ in range(MAX_STARTS + 1):
        korea.gateway.then = [cut]
        (error,) = await asyncio.gather(korea.reconciler.run_once(), return_exceptions=True)
        assert isinstance(error, Exception)
        assert pool.trouble(error) is pool.Trouble.AWAY
    assert await korea.reconciler.run_once() == 1
    assert (await korea.services.reconciliations.get(started.id)).status == "DONE"


async def test_the_timer_starts_a_run_when_it_is_due(korea: Korea) -> None:
    """PAY-9: however many processes have a timer, and however often they start."""
    timer = {korea.source.id: Timer(timedelta(hours=24), timedelta(days=3))}
    database, rules = korea.shop.database, korea.shop.rules
    workers = [ReconciliationWorker(database, rules, Wakeup(), timer, QUICK) for _ in range(3)]
    done = await asyncio.gather(*(one.run_once() for one in workers))
    assert sum(done) == 1
    assert [await one.run_once() for one in workers] == [0, 0, 0]
    (run,) = (await korea.services.reconciliations.search(ReconciliationQuery())).items
    assert (run.actor, run.status, run.until - run.since) == ("timer", "DONE", timedelta(days=3))
    await aged(korea, hours=25)
    assert await workers[0].run_once() == 1
    korea.gateway.misbehave(LIST, Trouble.BROKEN)
    await aged(korea, hours=25)
    assert await workers[0].run_once() == 1
    assert await workers[0].run_once() == 0
    await aged(korea, hours=2)
    assert await workers[0].run_once() == 1, "after a failure soon again"
    for one in workers:
        await one.close()


async def begun(connection: Connection, korea: Korea) -> bool:
    """Begin the next run, as a worker does."""
    query = reconciliation_store.QUERIES["begin"]
    return await query.row(connection, source_id=korea.source.id) is not None


async def aged(korea: Korea, hours: int) -> None:
    async with korea.shop.database.connection() as connection:
        await connection.execute(
            "UPDATE reconciliations SET created_at = created_at - make_interval(hours => $1)", hours
        )


async def test_an_invalid_request_is_rejected(korea: Korea) -> None:
    """PAY-9"""
    with pytest.raises(NotFoundError, match="known are kr"):
        await korea.start(source="nowhere")
    with pytest.raises(InvalidRequestError, match="before until"):
        await korea.start(since=datetime.now(UTC))
    with pytest.raises(InvalidRequestError, match="before until"):
        await korea.start(since=UNTIL, until=SINCE)
    plain = replace(korea.source, provider=Plain())
    rules: Rules = replace(korea.shop.rules, sources={plain.id: plain})
    with pytest.raises(InvalidRequestError, match="no list of payments"):
        await replace(korea, services=Services(korea.shop.database, rules)).start()


async def test_a_request_is_recorded_in_the_audit_log(korea: Korea) -> None:
    """SEC-6"""
    await korea.reconcile()
    (row,) = await korea.shop.rows(
        "SELECT actor, details FROM audit_log WHERE action = 'reconciliation_started'"
    )
    assert (row["actor"], json.loads(row["details"])["source"]) == ("somebody", "kr")
