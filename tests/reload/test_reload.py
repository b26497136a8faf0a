"""Settings are reloaded while real servers work: all processes take them, or none does."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import pytest

from paidonce.runtime.service import CANCEL_S, FINISH_S
from tests.support.servers import StartService
from tests.support.service import BASIC, SECRET, Service, paid, spawned, started_service
from tests.support.tools import is_problem, paidonce, rows, until

SENDERS: Final = 4
RELOADS: Final = 4
SHOP: Final = f'\n[sources.shop]\nprovider = "tilda"\nsecrets = ["{SECRET}-of-the-shop"]\n'


@dataclass(frozen=True)
class Site:
    """Two processes behind one socket, and their settings."""

    service: Service
    database_url: str

    def write(self, config: str) -> None:
        text = f'{config}\n[database]\nurl = "{self.database_url}"\n'
        (self.service.folder / "paidonce.toml").write_text(text, encoding="utf-8")

    def reload(self, config: str, code: int = 0) -> Any:
        """Have it reloaded by the command."""
        self.write(config)
        done = paidonce(self.service.folder, "reload", "--json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        return rows(self.database_url, sql, *values)


@pytest.fixture(scope="module")
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    service = started_service(folder, shared_database, arguments=["--processes", "2"])
    yield Site(service, shared_database)
    service.end()


def sources(service: Service) -> list[str]:
    return [one["name"] for one in service.request("GET", "/webhooks/health").json["sources"]]


def priced(number: int) -> str:
    return BASIC.replace('"990.00"', f'"{900 + number}.00"')


def test_the_command_says_what_changed_and_what_needs_a_restart(site: Site) -> None:
    """OPS-13"""
    changed = priced(1).replace('"first-secret", ', "") + SHOP + '[server]\nmode = "queued"\n'
    done = site.reload(changed)
    assert done["status"] == "TAKEN"
    assert done["changed"] == [
        "plans.monthly.price", "sources.payments.secrets", "sources.shop (new)"
    ]  # fmt: skip
    assert done["needs_restart"] == ["server.mode"]
    assert [one["is_taken"] for one in done["processes"]] == [True, True]
    for _ in range(10):  # whichever of the two answers
        assert site.service.deliver(paid("old")).http == 401
        assert site.service.deliver(paid("new"), secret="second-secret").http == 200
        shop = site.service.deliver(paid("s"), source="shop", secret=f"{SECRET}-of-the-shop")
        assert shop.http == 200
    assert site.reload(changed)["changed"] == []
    (action,) = site.rows(
        "SELECT actor, details FROM audit_log WHERE action = 'settings_reloaded'"
        " ORDER BY id LIMIT 1"
    )
    assert action["actor"].startswith("cli:")
    assert "secret" not in str(action["details"]).replace("payments.secrets", "")
    assert site.reload(BASIC)["changed"][-1] == "sources.shop (removed)"
    assert site.service.deliver(paid("s"), source="shop").http == 404


WRONG: Final[Mapping[str, tuple[str, str]]] = {
    "a missing file": (
        BASIC.replace(f'"{SECRET}"', '"file:/there/is/none"'), "sources.payments.secrets[0]"
    ),
    "a file that cannot be read": (
        BASIC.replace(f'"{SECRET}"', '"file:/"'), "sources.payments.secrets[0]"
    ),
    "another provider": (BASIC.replace('"tilda"', '"stripe"'), "sources.payments.provider"),
    "a wrong price": (BASIC.replace('"990.00"', '"much"'), "plans.monthly.price"),
    "a misspelt option": (BASIC.replace("secrets =", "option = 1\nsecrets ="), "payments.option"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_settings_are_refused_by_all_and_the_old_ones_stay(site: Site, mistake: str) -> None:
    """OPS-13"""
    config, named = WRONG[mistake]
    done = site.reload(config, code=1)
    assert done["status"] == "REFUSED"
    assert named in done["reason"]
    assert not any(one["is_taken"] for one in done["processes"])
    for _ in range(6):
        assert site.service.deliver(paid("stays")).http == 200
    site.write(BASIC)


def test_a_file_that_is_no_toml_is_refused_by_the_signal_and_by_the_command(site: Site) -> None:
    """OPS-13"""
    site.write('[plans.monthly\nprice = "1')
    done = paidonce(site.service.folder, "reload")
    assert done.returncode == 2
    assert "paidonce.toml" in done.stderr
    before = len(site.service.log_lines(event="settings_refused"))
    site.service.process.send_signal(signal.SIGHUP)
    until(lambda: len(site.service.log_lines(event="settings_refused")) >= before + 2)
    assert "paidonce.toml" in site.service.log_lines(event="settings_refused")[-1]["reason"]
    assert site.service.deliver(paid("stays")).http == 200
    site.write(BASIC)


def test_events_of_a_source_that_left_wait_and_are_processed_when_it_is_back(site: Site) -> None:
    """OPS-13 PAY-5"""
    site.reload(BASIC + SHOP)
    said = paid("waiting", email="waiting@example.com")
    secret = f"{SECRET}-of-the-shop"
    assert site.service.deliver(said, source="shop", secret=secret).http == 200
    site.reload(BASIC + SHOP.replace("sources.shop", "sources.renamed"))
    assert "renamed" in sources(site.service)
    site.service.user("waiting@example.com")  # due now, and nobody knows its source
    late = "SELECT FROM event_queue WHERE run_at > now() + interval '50 minutes'"
    until(lambda: site.rows(late))
    applied = "SELECT FROM payments WHERE email_key = $1 AND applied_at IS NOT NULL"
    site.reload(BASIC + SHOP)
    assert until(lambda: site.rows(applied, "waiting@example.com"))
    site.reload(BASIC)


def test_reloads_at_the_same_time_follow_each_other(site: Site) -> None:
    """OPS-13"""
    site.write(priced(7))
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(paidonce, site.service.folder, "reload", "--json", timeout_s=100)
            for _ in range(3)
        ]
        site.service.process.send_signal(signal.SIGHUP)
        done = [json.loads(one.result().stdout) for one in asked]
    assert {one["status"] for one in done} == {"TAKEN"}
    assert not [one for one in done if one["changed"] not in ([], ["plans.monthly.price"])]
    site.reload(BASIC)


def test_reloading_over_http_needs_the_scope_admin(site: Site) -> None:
    """OPS-13 SEC-6"""
    key = site.service.api("POST", "/keys", {"name": "few rights", "scope": "operate"}).json["key"]
    assert is_problem(site.service.api("POST", "/reload", key=key), 403)
    site.write(priced(3))
    done = site.service.api("POST", "/reload").json
    assert (done["status"], done["changed"]) == ("TAKEN", ["plans.monthly.price"])
    site.reload(BASIC)


def test_no_delivery_is_lost_or_refused_while_settings_are_reloaded(site: Site) -> None:
    """OPS-13 REC-2: nor does one wait for the end of a reload."""
    is_over = threading.Event()
    began = len(site.rows("SELECT FROM payments"))

    def send(sender: int) -> list[int]:
        answers: list[int] = []
        while not is_over.is_set():
            answers.append(site.service.deliver(paid(f"load-{sender}-{len(answers)}")).http)
        return answers

    with ThreadPoolExecutor(SENDERS) as pool:
        sending = [pool.submit(send, sender) for sender in range(SENDERS)]
        try:
            for number in range(RELOADS):
                site.write(priced(10 + number))
                before = taken(site.service)
                for _ in range(3):  # signals that come together are one
                    site.service.process.send_signal(signal.SIGHUP)
                until(lambda before=before: taken(site.service) >= before + 2)  # type: ignore[misc]
        finally:
            is_over.set()
        answers = [answer for one in sending for answer in one.result()]
    assert set(answers) == {200}
    assert len(site.rows("SELECT FROM payments")) == began + len(answers)
    site.reload(BASIC)


def taken(service: Service) -> int:
    """How often a process took new settings."""
    return sum("changed" in line for line in service.log_lines(event="settings_reloaded"))


def test_a_process_that_replaces_a_dead_one_has_the_new_settings(site: Site) -> None:
    """OPS-13"""
    site.reload(BASIC + SHOP)
    parent = site.service.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children")
    before = set(children.read_text(encoding="ascii").split())
    for pid in before:
        os.kill(int(pid), signal.SIGKILL)

    def is_replaced() -> bool:
        now = set(children.read_text(encoding="ascii").split())
        return len(now) == len(before) and not now & before

    assert until(is_replaced)
    shop = paid("heir"), f"{SECRET}-of-the-shop"
    for _ in range(6):
        assert site.service.deliver(shop[0], source="shop", secret=shop[1]).http == 200
    site.reload(BASIC)


def test_a_worker_and_a_server_take_settings_together_or_not_at_all(
    start_service: StartService, start_worker: StartService, database_url: str
) -> None:
    """OPS-13"""
    service, worker = start_service(), start_worker()
    site, shed = Site(service, database_url), Site(worker, database_url)
    assert len(site.reload(BASIC)["processes"]) == 2
    shed.write(WRONG["a wrong price"][0])
    refused = site.reload(BASIC + SHOP, code=1)
    assert [one["accepted"] for one in refused["processes"]].count(True) == 1
    assert sources(service) == ["payments"]
    shed.write(priced(5))
    worker.process.send_signal(signal.SIGHUP)  # it alone
    assert until(
        lambda: worker.log_lines(event="settings_reloaded", changed=["plans.monthly.price"])
    )
    assert not service.log_lines(event="settings_reloaded", changed=["sources.shop (new)"])
    assert site.reload(BASIC + SHOP)["changed"] == ["sources.shop (new)"]


HANDLER: Final = """
import asyncio
from pathlib import Path
import paidonce

@paidonce.on("payment.succeeded")
async def slow(event):
    with Path("called").open("a") as calls:
        calls.write("x")
    while not Path("released").exists():
        await asyncio.sleep(0.02)
"""


def test_a_handler_that_runs_ends_with_the_settings_that_it_began_with(
    start_service: StartService, database_url: str, tmp_path: Path
) -> None:
    """OPS-13 FUL-5: it is called once."""
    (tmp_path / "slow_handler.py").write_text(HANDLER, encoding="utf-8")
    config = f'handlers = ["slow_handler"]\n{BASIC}'
    site = Site(start_service(config, PYTHONPATH=str(tmp_path)), database_url)
    site.service.user("slow@example.com")
    assert site.service.deliver(paid("slow", email="slow@example.com")).http == 200
    called, released = site.service.folder / "called", site.service.folder / "released"
    assert until(called.exists)
    for number in (1, 2):  # the second one waits for the handler, not for its end
        site.write(config + (SHOP if number == 1 else ""))
        site.service.process.send_signal(signal.SIGHUP)
        if number == 1:
            assert until(lambda: taken(site.service) == 1)
            assert "shop" in sources(site.service)
    assert until(lambda: len(answers(database_url)) == 2)
    time.sleep(FINISH_S + CANCEL_S)  # longer than a stop would wait; a right result needs none
    released.touch()
    assert until(lambda: taken(site.service) == 2)
    applied = "SELECT FROM payments WHERE applied_at IS NOT NULL"
    assert until(lambda: site.rows(applied))
    assert called.read_text(encoding="utf-8") == "x"


def answers(database_url: str) -> list[dict[str, Any]]:
    return rows(database_url, "SELECT FROM reload_answers")


def test_without_its_database_a_service_keeps_its_settings_and_takes_new_ones_later(
    start_service: StartService, database_url: str
) -> None:
    """OPS-13"""
    site = Site(start_service(), database_url)
    site.write(BASIC + SHOP)
    with away(database_url):
        site.service.process.send_signal(signal.SIGHUP)
        assert until(lambda: site.service.log_lines(event="settings_refused"))
    assert until(lambda: site.service.request("GET", "/readyz").http == 200)
    assert sources(site.service) == ["payments"]

    def reloaded() -> bool:
        done = paidonce(site.service.folder, "reload", "--json")
        return done.returncode == 0 and json.loads(done.stdout)["changed"] != []

    assert until(reloaded)
    assert sources(site.service) == ["payments", "shop"]


@contextmanager
def away(database_url: str) -> Iterator[None]:
    """Nobody can reach the database."""
    name = urlsplit(database_url).path.removeprefix("/")
    run(database_url, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    run(
        database_url,
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    try:
        yield
    finally:
        run(database_url, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def run(database_url: str, sql: str) -> None:
    """Run a statement from the database beside."""
    beside = urlsplit(database_url)._replace(path="/postgres").geturl()

    async def execute() -> None:
        connection = await asyncpg.connect(beside)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, execute()).result()


def test_signals_during_the_start_and_the_stop_end_nothing(
    database_url: str, tmp_path: Path
) -> None:
    """OPS-13"""
    process = spawned(tmp_path, database_url, "", None, ("serve", "--port", "0"))
    until(lambda: handles_hangup(process.pid))
    with hanging_up(process.send_signal):
        assert until(lambda: "running at" in (tmp_path / "stderr").read_text(encoding="utf-8"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def handles_hangup(pid: int) -> bool:
    """Whether the process has a handler for SIGHUP."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1)


@contextmanager
def hanging_up(send: Callable[[int], object]) -> Iterator[None]:
    """Send SIGHUP all the time."""
    is_over = threading.Event()

    def storm() -> None:
        while not is_over.wait(0.01):
            send(signal.SIGHUP)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
