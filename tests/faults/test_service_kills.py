"""Relay, payment and query service, and the broker, are killed at random while payments are made.

A gateway with bad manners carries them out: it is slow, silent, down, calls back twice, too early,
or takes its word back. Afterwards wallets, payments, the read model, the log and the gateway agree.
"""

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from paidonce.runtime.crashpoints import CrashPoint
from tests.faults.company import (
    MANNERS,
    TOP_UP,
    USUAL,
    Company,
    forget_topics,
    verified,
    wait_for_the_end,
)
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import SERVICE_CRASHES, SERVICE_KILLS, WALLET_PAYMENTS
from tests.payouts.payer import Payer, config_for
from tests.support.kafka import MockBroker, NamedBroker, OwnBroker
from tests.support.payout_gateway import PayingGateway, running

TOPICS: Final = ("paidonce.wallet-payment", "paidonce.gateway-callback")
KAFKA: Final = """
[bus]
url = "kafka://{bootstrap}"
[bus.kafka]
"session.timeout.ms" = 6000
"""
ROLES: Final = ("relay", "payments", "query")
WALLETS: Final = 8
SENDERS: Final = 4
PAUSES_S: Final = (0.2, 1.5)
"""How long the service runs between two kills, at least and at most."""


@pytest.fixture
def gateway() -> Iterator[PayingGateway]:
    with running(PayingGateway(lambda name: MANNERS[name.partition("-")[0]])) as gateway:
        yield gateway


@pytest.fixture(params=["postgres", "kafka"])
def broker(request: pytest.FixtureRequest) -> NamedBroker | OwnBroker | None:
    """The bus: PostgreSQL itself, or this run's Kafka."""
    if request.param == "postgres":
        return None
    kafka: NamedBroker | OwnBroker | MockBroker = request.getfixturevalue("kafka")
    if isinstance(kafka, MockBroker):
        pytest.skip("an imitation lives in one process, and these are several")
    forget_topics(kafka.bootstrap, TOPICS)
    return kafka


@pytest.fixture
def company(
    tmp_path: Path,
    database_url: str,
    gateway: PayingGateway,
    broker: NamedBroker | OwnBroker | None,
) -> Iterator[Company]:
    bus = "" if broker is None else KAFKA.format(bootstrap=broker.bootstrap)
    company = Company(tmp_path, database_url, config_for(gateway) + bus)
    company.broker = broker if isinstance(broker, OwnBroker) else None
    yield company
    company.end()


def test_every_payment_ends_once_whoever_is_killed(
    company: Company, gateway: PayingGateway, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 SVC-1 QRY-1 BUS-1: no event is lost, none counts twice, each payment's are in order."""
    dice, number = random.Random(7), WALLET_PAYMENTS.at(full)
    web = company.start("web", "web,worker")
    gateway.callback_url = f"http://127.0.0.1:{web.port}/webhooks/bank"
    with ThreadPoolExecutor(len(ROLES)) as starting:
        list(starting.map(company.start, ROLES))
    payer = Payer(web, gateway, database_url)
    wallets = [payer.wallet(TOP_UP) for _ in range(WALLETS)]
    names = [f"{dice.choice(USUAL)}-{one}" for one in range(number)]
    chosen = {name: dice.choice(wallets) for name in names}
    roles = ROLES if company.broker is None else (*ROLES, "broker")
    victims = [role for role in roles for _ in range(SERVICE_KILLS.at(full))]
    dice.shuffle(victims)
    with ThreadPoolExecutor(SENDERS) as senders, ThreadPoolExecutor(len(ROLES)) as starting:
        starts: list[Future[None]] = []
        for turn, victim in enumerate(victims):
            share = names[turn :: len(victims)]
            starts += [senders.submit(_started, payer, name, chosen[name]) for name in share]
            time.sleep(dice.uniform(*PAUSES_S))  # this is the load, no synchronisation
            company.kill_and_replace(victim, starting)
        for start in starts:
            start.result()
    wait_for_the_end(company, database_url, number)
    company.kill("web")
    found = verified(company, gateway, database_url)
    findings.add(
        Experiment.SERVICES_KILLED,
        f"{company.kills.total() - 1} kills ({', '.join(roles)}), {number:,} payments",
        f"{found['COMPLETED']:,} paid and {found['FAILED']:,} failed, each once; wallets, "
        "payments, read model, log and gateway agree",
    )


POINTS: Final = (
    CrashPoint.RESERVED,
    CrashPoint.CALLING,
    CrashPoint.CALLED,
    CrashPoint.CALLBACK_APPLIED,
    CrashPoint.ANSWER_SAVED,
)
PAYMENTS_A_POINT: Final = 40
DEATH_TIMEOUT_S: Final = 120.0
SIGKILLED: Final = -9


def test_a_payment_ends_once_though_its_service_dies_at_each_moment(
    company: Company,
    gateway: PayingGateway,
    broker: NamedBroker | OwnBroker | None,
    database_url: str,
    full: bool,
    findings: Findings,
) -> None:
    """REL-1 SVC-1: reserved and not committed, charged and not saved, heard and not committed."""
    if broker is not None and not full:
        pytest.skip("the moments are the same on every bus")
    web = company.start("web", "web,worker")
    gateway.callback_url = f"http://127.0.0.1:{web.port}/webhooks/bank"
    payer = Payer(web, gateway, database_url)
    wallet = payer.wallet(TOP_UP)
    number, dice = 0, random.Random(11)
    for point in POINTS * SERVICE_CRASHES.at(full):
        passings = 1 if point is CrashPoint.RESERVED else dice.randrange(1, 6)  # once for a batch
        mortal = company.begin_to_die(",".join(ROLES), f"{point}:{passings}")
        for _ in range(PAYMENTS_A_POINT):
            assert payer.start(f"{dice.choice(USUAL)}-{number}", wallet, "1.00").http == 202
            number += 1
        assert mortal.wait(DEATH_TIMEOUT_S) == SIGKILLED
    company.start("survivor", ",".join(ROLES))
    wait_for_the_end(company, database_url, number)
    found = verified(company, gateway, database_url)
    findings.add(
        Experiment.CRASH_POINTS,
        f"{', '.join(f'`{point}`' for point in POINTS)}, {number:,} payments out of a wallet",
        f"{found['COMPLETED']:,} paid and {found['FAILED']:,} failed, each once",
    )


def _started(payer: Payer, name: str, wallet_id: str) -> None:
    assert payer.start(name, wallet_id, "1.00").http == 202
    if name.endswith("7"):  # whoever is not sure asks again
        assert payer.start(name, wallet_id, "1.00").http == 200
