"""A gateway's books held against ours: what is missing is found, and repaired once."""

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

from paidonce.domain.events import EventId, ExternalId, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.engine import reconciliation
from paidonce.engine.asking import Asker
from paidonce.engine.bell import Bell
from paidonce.engine.items import Incoming, Request, Rules, Source
from paidonce.engine.reconciler import MAX_STARTS, Reconciler, Timer
from paidonce.engine.transactions import Settler
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.operations import Actor, Operations, Scope
from paidonce.operations.reconciliations import ReconciliationDetail
from paidonce.providers import portone
from paidonce.providers.contract import Delivery, Identity, Setup, fingerprint, key_digest
from paidonce.store import db, reconciliations
from paidonce.store.reconciliations import Found
from paidonce.store.schema import register_source
from tests.gateways.portone import (
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
from tests.providers.cases.standard import whsec
from tests.store.batches import Plain, Stage
from tests.store.test_stale_money import late

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
    reconciler: Reconciler
    operations: Operations

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
        """Settle what their webhooks were found to say."""
        settler = Settler(self.shop.database, self.shop.rules)
        items = [self._told(one) for one in payments]
        for first in range(0, len(items), 100):
            await settler.settle(items[first : first + 100])
        await settler.close()

    async def hear_late(self, *payments: Payment) -> None:
        """The same of webhooks that came too late."""
        settler = Settler(self.shop.database, self.shop.rules)
        await settler.settle([late(self._told(one)) for one in payments])
        await settler.close()

    def _told(self, payment: Payment) -> Incoming:
        key = f"{payment.id}:{payment.status}:{payment.cancelled_minor}"
        is_paid = payment.status == "PAID"
        event = PaymentEvent(
            says=Says.PAID if is_paid else Says.CANCELED,
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
            identity=Identity(key, fingerprint(key), "told", None, payment.id, payment.order),
            key=(self.source.id, key_digest(key)),
            event=event,
        )

    async def reconcile(self, dry_run: bool = False, days_ago: int = 0) -> ReconciliationDetail:
        """A reconciliation from its wish to its report."""
        earlier = timedelta(days=days_ago)
        wanted = await self.operations.start_reconciliation(
            ME, source="kr", since=SINCE - earlier, until=UNTIL - earlier, dry_run=dry_run
        )
        while not (report := await self.operations.reconciliation(wanted.id)).is_finished:
            await self.reconciler.run_once()
        return report

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
    setup = Setup("sources.kr", secrets, {**options, "api_url": gateway.url}, accepts_test=False)
    async with shop.database.transaction() as connection:
        source_id = await register_source(connection, "kr", "portone")
    source = Source(source_id, "kr", portone.configure(setup), False, ask_rate=1_000)
    rules = replace(shop.rules, sources={source_id: source})
    bell = Bell(shop.database)
    asker = Asker(shop.database, rules, bell)
    asking = asyncio.create_task(asker.run())
    reconciler = Reconciler(shop.database, rules, bell, pauses_s=())
    stage = replace(shop, rules=rules, source=source)
    yield Korea(stage, gateway, reconciler, Operations(shop.database, rules))
    asker.finish()
    await asking
    await reconciler.close()


@pytest_asyncio.fixture(loop_scope="session")
async def korea(shop: Stage, request: pytest.FixtureRequest) -> AsyncIterator[Korea]:
    options = getattr(request, "param", V2)
    async with PortOneGateway() as gateway, opened(shop, gateway, options) as korea:
        yield korea


def paid(name: str, number: int = 0, **said: Any) -> Payment:
    usual = Payment(
        name,
        order=name,
        transaction_id=f"tx-{name}",
        total_minor=PRICE,
        paid_at_s=PAID_AT + number * 30,
    )
    return replace(usual, **said)


def canceled(payment: Payment, amount_minor: int) -> Payment:
    status = "CANCELLED" if amount_minor == payment.total_minor else "PARTIAL_CANCELLED"
    back = Cancellation(f"c-{payment.id}", amount_minor)
    return replace(payment, status=status, cancellations=(back,))


def found(report: ReconciliationDetail) -> dict[str, tuple[str, str | None, bool]]:
    return {one.external_payment_id: (one.kind, one.resolution, one.new) for one in report.findings}


async def test_what_came_too_late_is_applied_when_the_gateway_still_says_so(korea: Korea) -> None:
    """PAY-9 PRV-8: the books are as good as a delivery in time; what they lack stays listed."""
    known, unknown = paid("late"), paid("unknown")
    await korea.order("late", "unknown")
    korea.gateway.add(known)
    await korea.hear_late(known, unknown)
    report = await korea.reconcile(dry_run=True)
    assert found(report) == {
        "late": ("behind", None, True),
        "unknown": ("missing_there", None, True),
    }
    assert await korea.applied() == 0
    report = await korea.reconcile()
    assert found(report)["late"] == ("behind", "repaired", False)
    assert await korea.applied() == 1
    assert (await korea.shop.payment("late"))["is_stale"] is False
    assert (await korea.shop.payment("unknown"))["review"] == "TIMESTAMP_EXPIRED"
    assert found(await korea.reconcile()).keys() == {"unknown"}


@both_versions
async def test_of_a_thousand_payments_all_that_is_wrong_is_found_and_repaired_once(
    korea: Korea,
) -> None:
    """PAY-9: ten webhooks were never sent, five payments differ, three are known here only."""
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
    told = {one.id: one for one in [*payments, *only_here] if one not in silent}
    told |= {less.id: replace(less, total_minor=12_000), other.id: replace(other, currency="USD")}
    await korea.hear(*told.values())
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
async def test_a_repair_is_an_event_like_any_other_and_the_webhook_after_it_adds_nothing(
    korea: Korea,
) -> None:
    """PAY-9 OBS-4: its trail says where it came from."""
    await korea.order("late")
    korea.gateway.add(paid("late"))
    report = await korea.reconcile()
    (event,) = (await korea.operations.events(limit=10)).items
    assert (event.status, event.payment) == ("PROCESSED", "late")
    assert (event.key or "").startswith("reconcile:")
    detail = await korea.operations.event(event.id)
    (made,) = [one for one in detail.trail if one.action == "reconciliation_repair"]
    assert made.details["reconciliation"] == str(report.id)
    await korea.hear(paid("late"))
    assert (await korea.applied(), await korea.events()) == (1, 2)
    assert (await korea.operations.order("late")).status == "PAID"


async def test_what_is_repaired_and_not_applied_is_told(korea: Korea) -> None:
    """PAY-8 PAY-9: nobody has ordered it."""
    korea.gateway.add(paid("nobodys"))
    report = await korea.reconcile()
    assert (report.repaired, report.needs_a_person) == (1, False)
    (unapplied,) = report.unapplied
    assert (unapplied.number, unapplied.amount, unapplied.currency) == (1, "10000", "KRW")


async def test_a_repair_that_comes_to_nothing_is_made_once(korea: Korea) -> None:
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
async def test_a_repair_that_was_given_up_is_made_again(korea: Korea, status: str) -> None:
    """PAY-9 RET-3: the gateway was away for longer than it was asked."""
    await korea.order("p")
    korea.gateway.add(paid("p"))
    korea.gateway.misbehave("p", *[Trouble.UNAUTHORIZED] * 3)
    await korea.reconcile()
    async with korea.shop.database.connection() as connection:
        await connection.execute(
            "UPDATE webhook_events SET status = $1, processed_at = now()", status
        )
        await connection.execute("DELETE FROM due")
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_here", "repaired", False)}
    assert (await korea.events(), await korea.applied()) == (1, 1)


async def test_a_dry_run_finds_and_repairs_nothing(korea: Korea) -> None:
    """PAY-9: what it found is known to the one that repairs it."""
    korea.gateway.add(paid("p"))
    report = await korea.reconcile(dry_run=True)
    assert found(report) == {"p": ("missing_here", None, True)}
    assert (report.needs_a_person, await korea.events()) == (True, 0)
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_here", "repaired", False)}
    assert (report.repaired, report.new_findings) == (1, 0)


async def test_a_payment_that_is_settled_meanwhile_is_no_finding(korea: Korea) -> None:
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
    """PAY-9: the statement is older than what is known here, and the gateway is asked again."""
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
    """PAY-9: its repair brings more than the statement said."""
    payment = paid("p")
    await korea.order("p")
    korea.gateway.add(payment)

    async def refund() -> None:
        korea.gateway.add(canceled(payment, 1_000))

    korea.gateway.then = [refund]
    report = await korea.reconcile()
    assert found(report) == {"p": ("missing_here", "repaired", True)}
    assert (report.agreed, report.repaired, report.needs_a_person) == (0, 1, False)


async def test_what_is_gone_is_resolved(korea: Korea) -> None:
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


async def test_what_is_open_is_looked_at_within_a_limit_of_its_own(
    korea: Korea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAY-9: it fails no later run, and what one leaves is the next one's."""
    a_day = 2_880  # in steps of 30 seconds
    today = [paid(f"today_{number}") for number in range(3)]
    yesterday = [paid(f"yesterday_{number}", -a_day) for number in range(3)]
    await korea.hear(*today, *yesterday)
    assert (await korea.reconcile()).missing_there == 3
    assert (await korea.reconcile(days_ago=1)).missing_there == 6
    monkeypatch.setattr(reconciliation, "MAX_LOOKED_UP", 2)
    monkeypatch.setattr(reconciliation, "MAX_LOOKED_AT_AGAIN", 4)
    korea.gateway.calls.clear()
    reports = [await korea.reconcile(days_ago=5) for _ in range(3)]
    assert [(one.status, one.missing_there) for one in reports] == [("DONE", 4)] * 3
    assert [korea.gateway.calls[one.id] for one in [*today, *yesterday]] == [2] * 6


async def test_what_was_repaired_late_is_counted_where_it_is_seen(korea: Korea) -> None:
    """PAY-9: it is one of those that were compared, and no other agrees the less for it."""
    korea.gateway.add(paid("p"))
    korea.gateway.misbehave("p", *[Trouble.UNAUTHORIZED] * 3)
    await korea.reconcile()
    await korea.hear(paid("p"))
    report = await korea.reconcile(days_ago=40)
    assert found(report) == {"p": ("missing_here", "repaired", False)}
    assert (report.compared, report.agreed, report.repaired) == (1, 0, 1)


async def test_findings_of_two_kinds_of_ids_are_two(korea: Korea) -> None:
    """PAY-9: a gateway may give a payment and a transaction the same one."""
    source_id, run_id = korea.source.id, uuid7()
    ids = [ExternalId("payment", "same"), ExternalId("transaction", "same")]
    async with korea.shop.database.transaction() as connection:
        for one in ids:
            seen = Found(one, "missing_there", "why", None, None, None, 0)
            await reconciliations.keep(connection, run_id, source_id, seen)
        await reconciliations.resolve(connection, run_id, source_id, ids[0])
    kept = await korea.shop.rows(
        "SELECT id_kind, resolution FROM reconciliation_findings ORDER BY id_kind"
    )
    assert [tuple(one.values()) for one in kept] == [("payment", "gone"), ("transaction", None)]


async def test_a_failure_keeps_what_was_found_and_tells_no_secret(korea: Korea) -> None:
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
    assert report.needs_a_person
    report = await korea.reconcile()
    assert (report.status, report.compared, report.agreed) == ("DONE", 151, 150)
    assert found(report) == {"only": ("missing_there", None, True)}


async def test_what_cannot_be_read_is_counted_and_stops_nothing(korea: Korea) -> None:
    """PAY-9"""
    odd = paid("odd", shown={"currency": "???"})
    korea.gateway.add(odd, paid("p", 1))
    report = await korea.reconcile()
    assert (report.compared, report.repaired, report.unreadable) == (1, 1, 1)
    assert report.needs_a_person


async def test_a_statement_of_another_account_is_not_asked_for_payment_by_payment(
    korea: Korea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAY-9 RET-1: more than some payments that it does not name are too many."""
    monkeypatch.setattr(reconciliation, "MAX_LOOKED_UP", 5)
    await korea.hear(*(paid(f"p_{number}") for number in range(10)))
    report = await korea.reconcile()
    assert report.status == "FAILED"
    assert "same account" in (report.error_message or "")
    assert sum(korea.gateway.calls[f"p_{number}"] for number in range(10)) == 5


async def test_one_process_at_a_time_works_on_a_source_and_takes_over_from_a_dead_one(
    korea: Korea,
) -> None:
    """PAY-9 RET-4: the lock ends with the session."""
    korea.gateway.add(paid("p"))
    wanted = await korea.operations.start_reconciliation(ME, source="kr", since=SINCE)
    session = await korea.shop.database.dedicated()
    assert await reconciliations.try_lock(session, korea.source.id)
    assert await reconciliations.begin(session, korea.source.id) is not None
    assert await korea.reconciler.run_once() == 0
    assert (await korea.operations.reconciliation(wanted.id)).status == "RUNNING"
    session.terminate()
    async with asyncio.timeout(10):
        while await korea.reconciler.run_once() == 0:
            pass
    report = await korea.operations.reconciliation(wanted.id)
    assert (report.status, report.repaired) == ("DONE", 1)


async def test_one_that_ends_its_process_again_and_again_is_given_up(korea: Korea) -> None:
    """PAY-9 RET-3"""
    wanted = await korea.operations.start_reconciliation(ME, source="kr", since=SINCE)
    async with korea.shop.database.connection() as connection:
        for _ in range(MAX_STARTS):
            assert await reconciliations.begin(connection, korea.source.id) is not None
    assert await korea.reconciler.run_once() == 1
    report = await korea.operations.reconciliation(wanted.id)
    assert (report.status, korea.gateway.calls[LIST]) == ("FAILED", 0)


async def test_one_that_is_stopped_is_left_to_the_next(korea: Korea) -> None:
    """PAY-9: and that does not count as a failure."""
    korea.gateway.add(paid("p"))
    korea.gateway.delay(LIST, 60)
    wanted = await korea.operations.start_reconciliation(ME, source="kr", since=SINCE)
    work = asyncio.create_task(korea.reconciler.run_once())
    async with asyncio.timeout(10):
        while korea.gateway.calls[LIST] == 0:
            await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    (row,) = await korea.shop.rows("SELECT status, starts FROM reconciliations")
    assert (row["status"], row["starts"]) == ("WAITING", 0)
    korea.gateway.delay(LIST, 0)
    assert await korea.reconciler.run_once() == 1
    assert (await korea.operations.reconciliation(wanted.id)).status == "DONE"


async def test_a_database_that_was_away_does_not_count_as_the_end_of_the_process(
    korea: Korea,
) -> None:
    """PAY-9 RET-3"""
    korea.gateway.add(paid("p"))
    wanted = await korea.operations.start_reconciliation(ME, source="kr", since=SINCE)

    async def cut() -> None:
        async with korea.shop.database.connection() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                " AND classid = 716120347 AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            )

    for _ in range(MAX_STARTS + 1):
        korea.gateway.then = [cut]
        (error,) = await asyncio.gather(korea.reconciler.run_once(), return_exceptions=True)
        assert isinstance(error, Exception)
        assert db.trouble(error) is db.Trouble.AWAY
    assert await korea.reconciler.run_once() == 1
    assert (await korea.operations.reconciliation(wanted.id)).status == "DONE"


async def test_the_timer_makes_one_when_the_table_says_so(korea: Korea) -> None:
    """PAY-9: however many processes have a timer, and however often they start."""
    timer = {korea.source.id: Timer(timedelta(hours=24), timedelta(days=3))}
    database, rules = korea.shop.database, korea.shop.rules
    workers = [Reconciler(database, rules, Bell(database), timer, ()) for _ in range(3)]
    done = await asyncio.gather(*(one.run_once() for one in workers))
    assert sum(done) == 1
    assert [await one.run_once() for one in workers] == [0, 0, 0]
    (run,) = (await korea.operations.reconciliations(limit=10)).items
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


async def aged(korea: Korea, hours: int) -> None:
    async with korea.shop.database.connection() as connection:
        await connection.execute(
            "UPDATE reconciliations SET created_at = created_at - make_interval(hours => $1)", hours
        )


async def test_what_cannot_be_reconciled_is_refused(korea: Korea) -> None:
    """PAY-9"""
    start = korea.operations.start_reconciliation
    with pytest.raises(NotFoundError, match="known are kr"):
        await start(ME, source="nowhere", since=SINCE)
    with pytest.raises(InvalidRequestError, match="before until"):
        await start(ME, source="kr", since=datetime.now(UTC))
    with pytest.raises(InvalidRequestError, match="before until"):
        await start(ME, source="kr", since=UNTIL, until=SINCE)
    plain = replace(korea.source, provider=Plain())
    rules: Rules = replace(korea.shop.rules, sources={plain.id: plain})
    with pytest.raises(InvalidRequestError, match="no list of payments"):
        await Operations(korea.shop.database, rules).start_reconciliation(
            ME, source="kr", since=SINCE
        )


async def test_a_wish_is_audited_with_who(korea: Korea) -> None:
    """SEC-6"""
    await korea.reconcile()
    (row,) = await korea.shop.rows(
        "SELECT actor, details FROM audit_log WHERE action = 'reconciliation_started'"
    )
    assert (row["actor"], json.loads(row["details"])["source"]) == ("somebody", "kr")
