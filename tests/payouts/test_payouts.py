"""Payments out of a wallet: a real service, a real gateway, and what goes wrong between them."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import orjson
import pytest

from paidonce.bus import outbox
from paidonce.bus.schemas import schemas
from paidonce.db.pool import open_database
from tests.payouts.payer import Payer, config_for, until
from tests.support.payout_gateway import Manners, PayingGateway, running
from tests.support.postgres import SCHEMA
from tests.support.service import started_service

MANNERS = {
    "plain": Manners(),
    "twice": Manners(copies=3),
    "early": Manners(calls_back_first=True, delay_s=0.3),
    "slow": Manners(delay_s=0.3),
    "silent": Manners(is_silent=2, calls_back=(), ends="succeeded"),
    "unheard": Manners(is_silent=2, calls_back_first=True),
    "breaks": Manners(breaks=2),
    "refuses": Manners(refuses=422),
    "locked": Manners(refuses=403),
    "pending": Manners(calls_back=("pending", "succeeded")),
    "fails": Manners(calls_back=("failed",)),
    "regrets": Manners(calls_back=("failed", "succeeded")),
    "wavers": Manners(calls_back=("succeeded", "failed")),
    "knows": Manners(answers="succeeded", calls_back=()),
    "declines": Manners(answers="failed", calls_back=()),
    "quiet": Manners(calls_back=()),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[PayingGateway]:
    with running(PayingGateway(lambda name: MANNERS[name.partition("-")[0]])) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def payer(
    gateway: PayingGateway, shared_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Payer]:
    config = config_for(gateway)
    service = started_service(tmp_path_factory.mktemp("paying"), shared_database, config)
    gateway.callback_url = f"http://127.0.0.1:{service.port}/webhooks/bank"
    yield Payer(service, gateway, shared_database)
    service.end()


def test_a_payment_is_reserved_sent_and_captured(payer: Payer) -> None:
    """SVC-1 QRY-1: from the call to the read model, and each step is told."""
    wallet = payer.wallet("100.00")
    started = payer.start("plain-1", wallet, "30.00")
    assert (started.http, started.json["status"]) == (202, "INITIATED")
    done = payer.ended("plain-1")
    assert done["transaction_id"] == payer.gateway.charges["plain-1"].transaction_id
    assert payer.balance(wallet) == ("70.00", "0.00")
    assert payer.types_of("plain-1") == [
        "PaymentInitiated", "PaymentProcessing", "PaymentCompleted",
    ]  # fmt: skip
    view = payer.view("plain-1").json
    assert view == {
        "payment_id": "plain-1",
        "status": "COMPLETED",
        "amount": "30.00",
        "currency": "RUB",
        "version": 3,
        "updated_at": done["updated_at"],
    }


@pytest.mark.parametrize(
    "name",
    [
        "twice",
        "early",
        "slow",
        "silent",
        "unheard",
        "breaks",
        "pending",
        "knows",
        "wavers",
        "regrets",
    ],
)
def test_a_payment_is_made_once_whatever_the_gateway_does(payer: Payer, name: str) -> None:
    """SVC-1 RET-5: slow, silent, down for a moment, calling back too often or too early."""
    wallet = payer.wallet("100.00")
    payer.start(f"{name}-1", wallet)
    payer.ended(f"{name}-1")
    assert payer.balance(wallet) == ("90.00", "0.00")
    assert payer.gateway.keys[f"{name}-1"] == {f"{name}-1"}
    assert [row["version"] for row in payer.log_of(f"{name}-1")][:3] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "failure"),
    [("refuses", "GATEWAY_REFUSED"), ("fails", "DECLINED"), ("declines", "DECLINED")],
)
def test_a_failed_payment_releases_its_amount(payer: Payer, name: str, failure: str) -> None:
    """SVC-1: failed, and then released."""
    wallet = payer.wallet("100.00")
    payer.start(f"{name}-2", wallet)
    assert payer.ended(f"{name}-2", "FAILED")["failure"] == failure
    assert payer.balance(wallet) == ("100.00", "0.00")
    assert payer.types_of(f"{name}-2")[-1] == "PaymentFailed"


def test_a_payment_without_funds_is_not_sent(payer: Payer) -> None:
    """SVC-1 WAL-2."""
    wallet = payer.wallet("5.00")
    payer.start("plain-poor", wallet, "5.01")
    assert payer.ended("plain-poor", "FAILED")["failure"] == "INSUFFICIENT_FUNDS"
    assert payer.gateway.told["plain-poor"] == 0
    assert payer.balance(wallet) == ("5.00", "0.00")


def test_success_after_failure_captures_the_amount(payer: Payer) -> None:
    """SVC-1: the gateway had given up too early, and the wallet still has the money."""
    wallet = payer.wallet("100.00")
    payer.start("fails-1", wallet)
    failed = payer.ended("fails-1", "FAILED")
    assert payer.balance(wallet) == ("100.00", "0.00")
    payer.call_back(failed["transaction_id"], "succeeded")
    payer.ended("fails-1")
    assert payer.balance(wallet) == ("90.00", "0.00")
    assert payer.types_of("fails-1")[-2:] == ["PaymentFailed", "PaymentRecovered"]


def test_success_after_failure_without_funds_needs_a_review(payer: Payer) -> None:
    """SVC-1: never silence; when the money is there, the person has it taken."""
    wallet = payer.wallet("10.00")
    payer.start("fails-poor", wallet)
    failed = payer.ended("fails-poor", "FAILED")
    payer.start("plain-rich", wallet)
    payer.ended("plain-rich")
    payer.call_back(failed["transaction_id"], "succeeded")
    until(lambda: payer.payment("fails-poor")["review"] == "INSUFFICIENT_FUNDS", "a person looks")
    listed = payer.service.api("GET", "/wallet-payments", review="INSUFFICIENT_FUNDS").json["items"]
    assert [one["payment_id"] for one in listed] == ["fails-poor"]
    assert payer.payment("fails-poor")["status"] == "FAILED"
    refused = payer.service.api("POST", "/wallet-payments/fails-poor/capture")
    assert (refused.http, refused.json["code"]) == (409, "INSUFFICIENT_FUNDS")
    payer.top_up(wallet, "10.00")
    recovered = payer.service.api("POST", "/wallet-payments/fails-poor/capture")
    assert (recovered.http, recovered.json["status"]) == (200, "COMPLETED")
    assert recovered.json["review"] is None
    payer.ended("fails-poor")
    assert payer.balance(wallet) == ("0.00", "0.00")


def test_a_callback_with_another_amount_needs_a_review(payer: Payer) -> None:
    """SVC-1 PAY-4 OPS-7: it completes nothing, and the person lets go of the money."""
    wallet = payer.wallet("10.00")
    payer.start("quiet-less", wallet)
    until(lambda: payer.payment("quiet-less")["transaction_id"] is not None, "it is taken")
    payer.call_back(payer.payment("quiet-less")["transaction_id"], "succeeded", amount="9.00")
    until(lambda: payer.payment("quiet-less")["review"] == "AMOUNT_MISMATCH", "a person looks")
    assert payer.payment("quiet-less")["status"] == "PROCESSING"
    assert payer.balance(wallet) == ("10.00", "10.00")
    given_up = paidonce(payer, "wallet-payments", "fail", "quiet-less")
    assert (given_up["status"], given_up["failure"]) == ("FAILED", "FAILED_BY_OPERATOR")
    again = payer.service.api("POST", "/wallet-payments/quiet-less/fail")
    assert (again.http, again.json["code"]) == (409, "CONFLICT")
    assert payer.balance(wallet) == ("10.00", "0.00")


def test_a_refused_call_does_not_fail_the_payment(payer: Payer) -> None:
    """SVC-1: a wrong key of ours, told by 403, fails no payment."""
    wallet = payer.wallet()
    payer.start("locked-1", wallet)
    until(lambda: payer.gateway.told["locked-1"] > 2, "it is told again and again")
    assert payer.payment("locked-1")["status"] == "PROCESSING"


def test_a_repeat_returns_the_payment_and_other_content_is_a_conflict(payer: Payer) -> None:
    """SVC-1: its id is its key."""
    wallet = payer.wallet()
    assert payer.start("plain-again", wallet).http == 202
    repeated = payer.start("plain-again", wallet)
    assert (repeated.http, repeated.json["payment_id"]) == (200, "plain-again")
    other = payer.start("plain-again", wallet, "11.00")
    assert (other.http, other.json["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    payer.ended("plain-again")
    assert payer.start("plain-again", wallet).json["status"] == "COMPLETED"
    assert len(payer.log_of("plain-again")) == 3


@pytest.mark.parametrize(
    ("asked", "http"),
    [
        ({"amount": "0"}, 400),
        ({"amount": "1.005"}, 400),
        ({"amount": "-1"}, 400),
        ({"currency": "USD"}, 400),
        ({"payment_id": ".."}, 400),
        ({"payment_id": "a\nb"}, 400),
        ({"wallet_id": "00000000-0000-0000-0000-000000000000"}, 404),
        ({"surplus": "x"}, 400),
    ],
    ids=str,
)
def test_invalid_payments_are_rejected_at_once(
    payer: Payer, asked: dict[str, str], http: int
) -> None:
    """SVC-1: nothing is started."""
    usual = {"payment_id": "plain-refused", "wallet_id": payer.wallet(), "amount": "1.00"}
    assert payer.service.api("POST", "/wallet-payments", usual | asked).http == http
    assert payer.service.api("GET", "/wallet-payments/plain-refused").http == 404


def test_an_unknown_payment_is_404(payer: Payer) -> None:
    """QRY-1."""
    assert payer.view("plain-never").http == 404
    assert payer.service.api("GET", "/wallet-payments/plain-never").http == 404


def test_a_callback_creates_no_ordinary_payment(payer: Payer) -> None:
    """SVC-1 REC-7: it is an event that is processed, and a duplicate when it comes again."""
    wallet = payer.wallet()
    payer.start("quiet-1", wallet)
    until(lambda: payer.payment("quiet-1")["transaction_id"] is not None, "it is told")
    transaction_id = payer.payment("quiet-1")["transaction_id"]
    payments = payer.rows("SELECT count(*) AS number FROM payments")[0]["number"]
    first = payer.call_back(transaction_id, "succeeded", "evt-quiet")
    assert (first.http, first.json["status"]) == (200, "success")
    again = payer.call_back(transaction_id, "succeeded", "evt-quiet")
    assert (again.http, again.json["status"]) == (200, "duplicate")
    other = payer.call_back(transaction_id, "succeeded", "evt-quiet-2")
    assert (other.http, other.json["status"]) == (200, "success")
    payer.ended("quiet-1")
    assert payer.rows("SELECT count(*) AS number FROM payments")[0]["number"] == payments
    told = payer.rows(
        "SELECT payload FROM outbox"
        " WHERE type = 'ProviderCallbackReceived' AND payload->>'transaction_id' = $1",
        transaction_id,
    )
    assert len(told) == 1
    assert payer.balance(wallet) == ("990.00", "0.00")


def test_a_refund_at_the_gateway_is_for_a_person(payer: Payer) -> None:
    """SVC-1: it is kept, and changes nothing by itself."""
    data = {"payment_id": "tx-refunded", "amount": "1.00", "currency": "RUB"}
    told = payer.post("bank", "payment.refunded", data)
    assert (told.http, told.json["status"]) == (200, "accepted")
    event = payer.service.api("GET", f"/events/{told.json['event_id']}").json
    assert (event["status"], event["error_code"]) == ("FAILED_FINAL", "NON_SUCCESS_STATUS")


def test_the_commands_start_show_list_and_rebuild(payer: Payer) -> None:
    """OPS-7: start, show, list, and what is shown made again."""
    wallet = payer.wallet()
    started = paidonce(
        payer, "wallet-payments", "start", "knows-cli", "--wallet-id", wallet, "--amount", "1.00"
    )
    assert started["status"] == "INITIATED"
    payer.ended("knows-cli")
    assert paidonce(payer, "wallet-payments", "show", "knows-cli")["status"] == "COMPLETED"
    assert paidonce(payer, "views", "show", "knows-cli")["version"] == 3
    names = [one["payment_id"] for one in paidonce(payer, "wallet-payments", "list")]
    assert "knows-cli" in names
    assert paidonce(payer, "wallet-payments", "list", "--review", "NOTHING") == []
    assert paidonce(payer, "wallet-payments", "callbacks") == []
    payer.rows("DELETE FROM payment_views WHERE payment_id = 'knows-cli'")
    assert payer.view("knows-cli").http == 404
    command = [sys.executable, "-m", "paidonce", "views", "rebuild"]
    subprocess.run(command, cwd=payer.service.folder, check=True, capture_output=True)
    assert payer.view("knows-cli").json["status"] == "COMPLETED"


def paidonce(payer: Payer, *words: str) -> Any:
    """What a command of the program answers to programs."""
    command = [sys.executable, "-m", "paidonce", *words, "--json"]
    done = subprocess.run(
        command, cwd=payer.service.folder, check=True, capture_output=True, text=True
    )
    return orjson.loads(done.stdout)


async def test_published_messages_match_their_schemas(payer: Payer) -> None:
    """BUS-1 SVC-1: every event that there is, and all that these tests have led to."""
    wallet = payer.wallet()
    for name, status in (("knows-told", "COMPLETED"), ("fails-told", "FAILED")):
        payer.start(name, wallet)
        payer.ended(name, status)
    payer.call_back(payer.payment("fails-told")["transaction_id"], "succeeded")
    payer.ended("fails-told")
    database = await open_database(payer.database_url, SCHEMA)
    try:
        async with database.connection() as connection:
            positions = {"wallet-payment": 0, "gateway-callback": 0}
            found = await outbox.published_after(connection, positions, 500)
    finally:
        await database.close()
    known = schemas()
    for one in found.values():
        checker = jsonschema_rs.validator_for(known[one.type], validate_formats=True)
        assert checker.is_valid(orjson.loads(one.body)), one
    assert {one.type for one in found.values()} == {name for name in known if name.startswith("P")}


def test_the_gateway_key_is_sent_and_never_logged(payer: Payer) -> None:
    """SEC-7."""
    assert payer.gateway.unauthorized == 0
    log = (payer.service.folder / "stdout").read_text() + (
        payer.service.folder / "stderr"
    ).read_text()
    assert "gateway-key" not in log
