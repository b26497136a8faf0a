"""Plans that change, leave the settings and come back, each time the program starts."""

from datetime import UTC, datetime, timedelta

from paidonce.bootstrap.registration import sync_plans
from paidonce.core.money import Money
from paidonce.core.plans import Plan, PlanBook, plan_book
from paidonce.db.pool import Database
from tests.support.servers import StartService
from tests.support.service import BASIC, Service, paid
from tests.support.tools import event, is_problem

GOLD = f"""{BASIC}
[plans.gold]
price = "5000.00"
currency = "RUB"
days = 365
"""


def plan(plan_id: str, price_minor: int = 99_000, *, is_default: bool = False) -> Plan:
    price = Money(price_minor, "RUB")
    return Plan(plan_id, price, "default", 30, 0, is_default, datetime.now(UTC))


async def start(database: Database, *plans: Plan) -> PlanBook:
    """What a start with these plans reads."""
    async with database.transaction() as connection:
        return plan_book(await sync_plans(connection, plans))


def price(book: PlanBook, plan_id: str | None, paid_at: datetime) -> int | None:
    found = book.find(plan_id, paid_at)
    return found.price.amount_minor if found else None


async def test_a_plan_that_left_prices_what_was_paid_before(database: Database) -> None:
    """PAY-4"""
    await start(database, plan("monthly"), plan("gold", 500_000))
    before = datetime.now(UTC)
    book = await start(database, plan("monthly"))
    after = datetime.now(UTC)
    assert price(book, "gold", before) == 500_000
    assert price(book, "gold", after) is None
    assert book.on_sale("gold") is None
    assert book.on_sale("monthly") is not None


async def test_a_plan_that_comes_back_is_on_sale_again(database: Database) -> None:
    """PAY-4: also for what was paid while it was not on sale."""
    await start(database, plan("gold", 500_000))
    before = datetime.now(UTC)
    await start(database)
    gap = datetime.now(UTC)
    book = await start(database, plan("gold", 600_000))
    assert [price(book, "gold", at) for at in (before, gap)] == [500_000, 600_000]
    assert price(book, "gold", datetime.now(UTC)) == 600_000
    on_sale = book.on_sale("gold")
    assert on_sale is not None
    assert on_sale.price.amount_minor == 600_000


async def test_the_default_plan_is_the_one_when_paid(database: Database) -> None:
    """PAY-4: also when it left the settings."""
    await start(database, plan("old", 500_000, is_default=True))
    before = datetime.now(UTC)
    await start(database, plan("new", 600_000, is_default=True))
    middle = datetime.now(UTC)
    book = await start(database, plan("new", 600_000))
    after = datetime.now(UTC)
    assert [price(book, None, at) for at in (before, middle, after)] == [500_000, 600_000, None]


async def test_the_same_plans_again_are_no_new_versions(database: Database) -> None:
    """PAY-4"""
    first = await start(database, plan("monthly"), plan("gold", 500_000))
    assert await start(database, plan("gold", 500_000), plan("monthly")) == first


async def test_a_clock_that_was_set_back_does_not_prevent_the_start(database: Database) -> None:
    """PAY-4"""
    await start(database, plan("gold"))
    async with database.transaction() as connection:
        await connection.execute("UPDATE plan_versions SET valid_from = now() + interval '1 hour'")
    book = await start(database, plan("gold", 500_000))
    assert price(book, "gold", datetime.now(UTC) + timedelta(hours=2)) == 500_000


def test_a_late_webhook_of_a_plan_that_left_is_applied(start_service: StartService) -> None:
    """PAY-4: what was paid after it left is PLAN_UNKNOWN, and no new order can name it."""
    first = start_service(GOLD)
    first.user("buyer@example.com")
    before = datetime.now(UTC)
    first.end()
    service = start_service(BASIC)
    after = datetime.now(UTC)
    assert outcome(service, "gold-1", before) == ("PROCESSED", None)
    assert outcome(service, "gold-2", after) == ("FAILED_FINAL", "PLAN_UNKNOWN")
    order = {"reference": "o", "amount": "5000.00", "currency": "RUB", "kind": "subscription"}
    named = {**order, "email": "buyer@example.com", "plan_id": "gold"}
    assert is_problem(service.api("POST", "/orders", named), 400)


def outcome(service: Service, payment: str, paid_at: datetime) -> tuple[str, str | None]:
    said = paid(payment, plan_id="gold", amount="5000.00", paid_at=paid_at.isoformat())
    found = event(service, service.deliver(said).json["event_id"])
    return found["status"], found["error_code"]
