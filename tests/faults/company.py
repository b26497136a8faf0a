"""Processes that make payments out of wallets together, and what has to agree in the end."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from tests.support.fork_server import Process
from tests.support.kafka import OwnBroker
from tests.support.payout_gateway import Manners, PayingGateway
from tests.support.service import Service, spawned, started_service
from tests.support.tools import rows

DEADLINE_S: Final = 300.0
"""How long it may take after the last of them was started."""
TOP_UP: Final = "1000000.00"

MANNERS: Final = {
    "plain": Manners(),
    "twice": Manners(copies=2),
    "early": Manners(calls_back_first=True, delay_s=0.1),
    "silent": Manners(is_silent=1),
    "breaks": Manners(breaks=1),
    "pending": Manners(calls_back=("pending", "succeeded")),
    "knows": Manners(answers="succeeded", calls_back=()),
    "regrets": Manners(calls_back=("failed", "succeeded"), call_back_after_s=0.1),
    "wavers": Manners(calls_back=("succeeded", "failed")),
    "fails": Manners(calls_back=("failed",)),
    "declines": Manners(answers="failed", calls_back=()),
    "refuses": Manners(refuses=422),
}
FAILING: Final = ("fails", "declines", "refuses")
USUAL: Final = [*["plain"] * 20, *MANNERS]


LEFT: Final = """
SELECT (SELECT count(*) FROM wallet_payments WHERE status IN ('COMPLETED', 'FAILED')) AS ended,
       (SELECT count(*) FROM payment_views JOIN wallet_payments USING (payment_id, status, version))
           AS shown,
       (SELECT count(*) FROM gateway_callbacks WHERE status = 'PENDING') AS waiting,
       (SELECT count(*) FROM outbox WHERE published_at IS NULL) AS unpublished,
       (SELECT count(*)
          FROM outbox AS o, unnest(ARRAY['payments', 'query']) AS g (consumer)
         WHERE (o.aggregate_type = 'wallet-payment'
                OR (o.aggregate_type = 'gateway-callback' AND g.consumer = 'payments'))
           AND NOT EXISTS (SELECT 1 FROM processed_events AS e
                            WHERE e.consumer = g.consumer AND e.event_id = o.id)) AS untaken
"""


class Company:
    """A process for each role, any of which may be killed and is started again."""

    def __init__(self, folder: Path, database_url: str, config: str) -> None:
        self._folder = folder
        self._database_url = database_url
        self._config = config
        self._started = Counter[str]()
        self.members: dict[str, Service] = {}
        self.broker: OwnBroker | None = None
        self.kills = Counter[str]()
        self._mortals: list[Process] = []
        self._replacing: dict[str, Future[None]] = {}

    def start(self, role: str, roles: str | None = None) -> Service:
        self._started[role] += 1
        folder = self._folder / f"{role}-{self._started[role]}"
        folder.mkdir()
        self.members[role] = started_service(
            folder,
            self._database_url,
            self._config,
            arguments=("--roles", roles or role),
        )
        return self.members[role]

    def begin_to_die(self, roles: str, crash_at: str) -> Process:
        """Start one that ends at a moment, which may come before it is ready."""
        self._started["mortal"] += 1
        folder = self._folder / f"mortal-{self._started['mortal']}"
        folder.mkdir()
        command = ("serve", "--port", "0", "--roles", roles)
        environment = {"PAIDONCE_CRASH_AT": crash_at}
        mortal = spawned(folder, self._database_url, self._config, environment, command)
        self._mortals.append(mortal)
        return mortal

    def kill_and_replace(self, role: str, starting: ThreadPoolExecutor) -> None:
        """Kill it, once it is there again after the last time, and go on without it meanwhile."""
        if role in self._replacing:
            self._replacing[role].result()
        self.kill(role)
        self._replacing[role] = starting.submit(self._start_again, role)

    def expect_nobody_crashed(self) -> None:
        """Whoever is not killed lives on, whatever becomes of the others."""
        for role, member in self.members.items():
            assert member.process.poll() is None, f"{role} ended with {member.process.returncode}"

    def _start_again(self, role: str) -> None:
        if role == "broker" and self.broker is not None:
            self.broker.start()
        else:
            self.start(role)

    def kill(self, role: str) -> None:
        self.kills[role] += 1
        if role == "broker" and self.broker is not None:
            self.broker.kill()
            return
        self.members[role].process.kill()
        self.members[role].process.wait()

    def end(self) -> None:
        for member in self.members.values():
            member.end()
        for mortal in self._mortals:
            mortal.kill()
            mortal.wait()


def forget_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """What earlier tests have left there is of other databases."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    known = client.list_topics(timeout=30).topics
    left = [one for one in topics if one in known]
    for deleted in client.delete_topics(left).values() if left else ():
        deleted.result(30)


def wait_for_the_end(company: Company, database_url: str, number: int) -> None:
    """Until each payment has ended, and the read model has heard of it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        company.expect_nobody_crashed()
        (left,) = rows(database_url, LEFT)
        if left == {"ended": number, "shown": number, "waiting": 0, "unpublished": 0, "untaken": 0}:
            return
        time.sleep(0.25)
    raise AssertionError(f"not all of {number} ended: {left}")


def verified(company: Company, gateway: PayingGateway, database_url: str) -> Counter[str]:
    payments = rows(database_url, "SELECT * FROM wallet_payments")
    for payment in payments:
        kind = payment["payment_id"].partition("-")[0]
        expected = "FAILED" if kind in FAILING else "COMPLETED"
        assert payment["status"] == expected, payment
        assert payment["review"] is None, payment
    _verify_views(database_url, payments)
    _verify_log(database_url, payments)
    _verify_wallets(company, database_url, payments)
    _verify_gateway(gateway, payments)
    assert rows(database_url, "SELECT * FROM bus_dead_letters") == []
    return Counter(payment["status"] for payment in payments)


def _verify_views(database_url: str, payments: list[dict[str, Any]]) -> None:
    shared = ("payment_id", "status", "amount_minor", "currency", "version", "updated_at")
    views = rows(database_url, "SELECT * FROM payment_views")
    shown = {view["payment_id"]: view for view in views}
    assert shown == {one["payment_id"]: {name: one[name] for name in shared} for one in payments}


def _verify_log(database_url: str, payments: list[dict[str, Any]]) -> None:
    """For each payment: versions without a gap, in order, none twice; and all was taken once."""
    log = rows(
        database_url,
        "SELECT aggregate_name, version, occurred_at FROM outbox"
        " WHERE aggregate_type = 'wallet-payment' ORDER BY seq",
    )
    told: dict[str, list[dict[str, Any]]] = {}
    for fact in log:
        told.setdefault(fact["aggregate_name"], []).append(fact)
    for payment in payments:
        facts = told[payment["payment_id"]]
        assert [one["version"] for one in facts] == list(range(1, payment["version"] + 1))
        times = [one["occurred_at"] for one in facts]
        assert times == sorted(times)
    (taken,) = rows(
        database_url,
        "SELECT count(*) FILTER (WHERE consumer = 'query') AS query,"
        " count(*) FILTER (WHERE consumer = 'payments') AS payments FROM processed_events",
    )
    (callbacks,) = rows(database_url, "SELECT count(*) AS number FROM gateway_callbacks")
    assert taken == {"query": len(log), "payments": len(log) + callbacks["number"]}


def _verify_wallets(company: Company, database_url: str, payments: list[dict[str, Any]]) -> None:
    folder = next(iter(company.members.values())).folder
    verify = [sys.executable, "-m", "paidonce", "wallet", "verify"]
    checked = subprocess.run(verify, cwd=folder, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    spent = Counter[str]()
    for payment in payments:
        if payment["status"] == "COMPLETED":
            spent[str(payment["wallet_id"])] += payment["amount_minor"]
    wallets = rows(database_url, "SELECT id, balance_minor, reserved_minor FROM wallets")
    for wallet in wallets:
        topped_up_minor = int(float(TOP_UP) * 100)
        assert wallet["reserved_minor"] == 0
        assert wallet["balance_minor"] == topped_up_minor - spent[str(wallet["id"])]


def _verify_gateway(gateway: PayingGateway, payments: list[dict[str, Any]]) -> None:
    """One idempotency key for each payment, one charge, and the transaction that is known here."""
    assert gateway.keys == {one["payment_id"]: {one["payment_id"]} for one in payments}
    known = {one["payment_id"]: one["transaction_id"] for one in payments if one["transaction_id"]}
    charged = Counter(charge.payment_id for charge in gateway.charges.values())
    assert set(charged.values()) <= {1}
    assert known == {one.payment_id: one.transaction_id for one in gateway.charges.values()}
