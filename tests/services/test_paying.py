"""Payments out of a wallet: a real service, a real gateway, and what goes wrong between them."""

from collections.abc import Iterator

import pytest

from tests.gateways.paying import Manners, PayingGateway, running
from tests.service import started_service
from tests.services.purse import Purse, config_for, until

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
def purse(
    gateway: PayingGateway, shared_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Purse]:
    config = config_for(gateway)
    service = started_service(tmp_path_factory.mktemp("paying"), shared_database, config)
    gateway.callback_url = f"http://127.0.0.1:{service.port}/webhooks/bank"
    yield Purse(service, gateway, shared_database)
    service.end()


def test_a_payment_is_reserved_carried_out_and_taken(purse: Purse) -> None:
    """SVC-1 QRY-1: from the call to the read model, and each step is told."""
    wallet = purse.wallet("100.00")
    started = purse.start("plain-1", wallet, "30.00")
    assert (started.http, started.json["status"]) == (202, "INITIATED")
    done = purse.ended("plain-1")
    assert done["transaction_id"] == purse.gateway.charges["plain-1"].transaction_id
    assert purse.balance(wallet) == ("70.00", "0.00")
    assert purse.types_of("plain-1") == [
        "PaymentInitiated", "PaymentProcessing", "PaymentCompleted",
    ]  # fmt: skip
    view = purse.view("plain-1").json
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
def test_it_is_paid_once_whatever_the_gateway_does(purse: Purse, name: str) -> None:
    """SVC-1 RET-5: slow, silent, down for a moment, calling back too often or too early."""
    wallet = purse.wallet("100.00")
    purse.start(f"{name}-1", wallet)
    purse.ended(f"{name}-1")
    assert purse.balance(wallet) == ("90.00", "0.00")
    assert purse.gateway.keys[f"{name}-1"] == {f"{name}-1"}
    assert [row["version"] for row in purse.log_of(f"{name}-1")][:3] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "failure"),
    [("refuses", "GATEWAY_REFUSED"), ("fails", "DECLINED"), ("declines", "DECLINED")],
)
def test_a_payment_that_fails_lets_go_of_the_money(purse: Purse, name: str, failure: str) -> None:
    """SVC-1: failed, and then released."""
    wallet = purse.wallet("100.00")
    purse.start(f"{name}-2", wallet)
    assert purse.ended(f"{name}-2", "FAILED")["failure"] == failure
    assert purse.balance(wallet) == ("100.00", "0.00")
    assert purse.types_of(f"{name}-2")[-1] == "PaymentFailed"


def test_a_payment_that_the_wallet_cannot_pay_never_reaches_the_gateway(purse: Purse) -> None:
    """SVC-1 WAL-2."""
    wallet = purse.wallet("5.00")
    purse.start("plain-poor", wallet, "5.01")
    assert purse.ended("plain-poor", "FAILED")["failure"] == "INSUFFICIENT_FUNDS"
    assert purse.gateway.told["plain-poor"] == 0
    assert purse.balance(wallet) == ("5.00", "0.00")


def test_success_after_failure_takes_the_money_again(purse: Purse) -> None:
    """SVC-1: the gateway had given up too early, and the wallet still has the money."""
    wallet = purse.wallet("100.00")
    purse.start("fails-1", wallet)
    failed = purse.ended("fails-1", "FAILED")
    assert purse.balance(wallet) == ("100.00", "0.00")
    purse.call_back(failed["transaction_id"], "succeeded")
    purse.ended("fails-1")
    assert purse.balance(wallet) == ("90.00", "0.00")
    assert purse.types_of("fails-1")[-2:] == ["PaymentFailed", "PaymentRecovered"]


def test_success_after_failure_without_money_goes_to_a_person(purse: Purse) -> None:
    """SVC-1: never silence; when the money is there, the person has it taken."""
    wallet = purse.wallet("10.00")
    purse.start("fails-poor", wallet)
    failed = purse.ended("fails-poor", "FAILED")
    purse.start("plain-rich", wallet)
    purse.ended("plain-rich")
    purse.call_back(failed["transaction_id"], "succeeded")
    until(lambda: purse.payment("fails-poor")["review"] == "INSUFFICIENT_FUNDS", "a person looks")
    listed = purse.service.api("GET", "/wallet-payments", review="INSUFFICIENT_FUNDS").json["items"]
    assert [one["payment_id"] for one in listed] == ["fails-poor"]
    assert purse.payment("fails-poor")["status"] == "FAILED"
    refused = purse.service.api("POST", "/wallet-payments/fails-poor/recover")
    assert (refused.http, refused.json["code"]) == (409, "INSUFFICIENT_FUNDS")
    purse.top_up(wallet, "10.00")
    recovered = purse.service.api("POST", "/wallet-payments/fails-poor/recover")
    assert (recovered.http, recovered.json["status"]) == (200, "COMPLETED")
    assert recovered.json["review"] is None
    purse.ended("fails-poor")
    assert purse.balance(wallet) == ("0.00", "0.00")


def test_a_refusal_of_the_call_is_none_of_the_payment(purse: Purse) -> None:
    """SVC-1: a wrong key of ours, told by 403, fails no payment."""
    wallet = purse.wallet()
    purse.start("locked-1", wallet)
    until(lambda: purse.gateway.told["locked-1"] > 2, "it is told again and again")
    assert purse.payment("locked-1")["status"] == "PROCESSING"


def test_a_repeat_is_the_same_payment_and_other_content_is_a_conflict(purse: Purse) -> None:
    """SVC-1: its id is its key."""
    wallet = purse.wallet()
    assert purse.start("plain-again", wallet).http == 202
    repeated = purse.start("plain-again", wallet)
    assert (repeated.http, repeated.json["payment_id"]) == (200, "plain-again")
    other = purse.start("plain-again", wallet, "11.00")
    assert (other.http, other.json["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    purse.ended("plain-again")
    assert purse.start("plain-again", wallet).json["status"] == "COMPLETED"
    assert len(purse.log_of("plain-again")) == 3


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
def test_what_cannot_be_paid_is_refused_at_once(
    purse: Purse, asked: dict[str, str], http: int
) -> None:
    """SVC-1: nothing is started."""
    usual = {"payment_id": "plain-refused", "wallet_id": purse.wallet(), "amount": "1.00"}
    assert purse.service.api("POST", "/wallet-payments", usual | asked).http == http
    assert purse.service.api("GET", "/wallet-payments/plain-refused").http == 404


def test_what_nobody_started_is_not_shown(purse: Purse) -> None:
    """QRY-1."""
    assert purse.view("plain-never").http == 404
    assert purse.service.api("GET", "/wallet-payments/plain-never").http == 404


def test_a_callback_makes_no_payment_of_the_ordinary_kind(purse: Purse) -> None:
    """SVC-1 REC-7: it is an event that is processed, and a duplicate when it comes again."""
    wallet = purse.wallet()
    purse.start("quiet-1", wallet)
    until(lambda: purse.payment("quiet-1")["transaction_id"] is not None, "it is told")
    transaction_id = purse.payment("quiet-1")["transaction_id"]
    payments = purse.rows("SELECT count(*) AS number FROM payments")[0]["number"]
    first = purse.call_back(transaction_id, "succeeded", "evt-quiet")
    assert (first.http, first.json["status"]) == (200, "success")
    again = purse.call_back(transaction_id, "succeeded", "evt-quiet")
    assert (again.http, again.json["status"]) == (200, "duplicate")
    other = purse.call_back(transaction_id, "succeeded", "evt-quiet-2")
    assert (other.http, other.json["status"]) == (200, "success")
    purse.ended("quiet-1")
    assert purse.rows("SELECT count(*) AS number FROM payments")[0]["number"] == payments
    told = purse.rows(
        "SELECT payload FROM outbox WHERE type = 'ProviderCallbackReceived' AND aggregate_id = $1",
        transaction_id,
    )
    assert len(told) == 1
    assert purse.balance(wallet) == ("990.00", "0.00")


def test_a_refund_at_the_gateway_is_for_a_person(purse: Purse) -> None:
    """SVC-1: it is kept, and changes nothing by itself."""
    data = {"payment_id": "tx-refunded", "amount": "1.00", "currency": "RUB"}
    told = purse.post("bank", "payment.refunded", data)
    assert (told.http, told.json["status"]) == (200, "accepted")
    event = purse.service.api("GET", f"/events/{told.json['event_id']}").json
    assert (event["status"], event["error_code"]) == ("FAILED_FINAL", "NON_SUCCESS_STATUS")


def test_the_gateway_knows_the_key_and_nobody_else_hears_of_it(purse: Purse) -> None:
    """SEC-7."""
    assert purse.gateway.unauthorized == 0
    log = (purse.service.folder / "stdout").read_text() + (
        purse.service.folder / "stderr"
    ).read_text()
    assert "gateway-key" not in log
