"""Notifications are sent at least once, combined, and independently for each channel."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from paidonce.core.events import EventId, PaymentId
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.db.search import first_id_at
from paidonce.notifications import digest
from paidonce.notifications import notifier as notifications_notifier
from paidonce.notifications import store as notifications_store
from paidonce.notifications.channels import Channel, load_channels, routes
from paidonce.notifications.model import (
    Notification,
    NotificationMessage,
    PendingNotification,
)
from paidonce.notifications.notifier import ROLE, Notifier
from paidonce.runtime import leader as leader_module
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import NotificationSettings
from paidonce.telemetry import metrics
from tests.support.notification_receivers import MailServer, Receiver

NOW: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECRET: Final = "whsec_" + base64.b64encode(b"a secret of enough bytes").decode()
EVENT: Final = EventId(UUID(int=1))
PAYMENT: Final = PaymentId(UUID(int=2))


class Office:
    """A database with notifications, and channels."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.channels: dict[str, Channel] = {}

    def channel(self, name: str, **settings: Any) -> None:
        self.channels |= load_channels({name: NotificationSettings(**settings)})

    @property
    def notifier(self) -> Notifier:
        return Notifier(self.channels, Leader(self.database))

    async def notify(self, kind: NotificationKind, number: int = 1, **said: Any) -> None:
        usual: dict[str, Any] = {"source": "shop", "event_id": EVENT, "payment_id": PAYMENT}
        notification = Notification(kind, NOW, **(usual | said))
        async with self.database.transaction() as connection:
            await notifications_store.add(
                connection, routes(self.channels), *[notification] * number
            )

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        async with self.database.connection() as connection:
            return [dict(row) for row in await connection.fetch(sql)]

    async def pass_time(self, seconds: float, *columns: str) -> None:
        """As if everything had been so much earlier."""
        for column in columns or ("at", "next_attempt_at"):
            await self.rows(
                f"UPDATE notification_messages"
                f" SET {column} = {column} - interval '{seconds} seconds'"
            )

    async def messages(self) -> list[tuple[str, str, int]]:
        rows = await self.rows(
            "SELECT channel, status, attempts FROM notification_messages ORDER BY id"
        )
        return [(row["channel"], row["status"], row["attempts"]) for row in rows]


@pytest.fixture
def office(database: Database) -> Office:
    return Office(database)


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as running:
        yield running


def webhook(office: Office, receiver: Receiver, name: str = "ops", **settings: Any) -> None:
    office.channel(name, kind="webhook", url=receiver.url, secret=SECRET, **settings)


async def test_a_webhook_is_signed_as_the_official_library_expects(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5: grouped by kind and source, with the way to each."""
    webhook(office, receiver)
    details = {"code": "AMOUNT_MISMATCH", "amount": "10.50", "currency": "RUB"}
    await office.notify(NotificationKind.MISMATCH, 7, details=details)
    await office.notify(NotificationKind.DEAD_LETTER, source="other", payment_id=None)
    assert await office.notifier.run_once() == 1
    (said,) = receiver.verified(SECRET)
    assert said["type"] == "paidonce.notifications"
    assert datetime.fromisoformat(said["timestamp"]).tzinfo is not None
    data = said["data"]
    assert (data["subject"], data["total"], data["left_out"]) == (
        "Paidonce: 1 dead letter, 7 wrong amounts", 8, 0,
    )  # fmt: skip
    first, second = data["groups"]
    assert (first["kind"], first["source"], first["count"]) == ("dead_letter", "other", 1)
    assert (second["kind"], second["source"], second["count"]) == ("mismatch", "shop", 7)
    assert len(second["newest"]) == digest.MAX_SHOWN
    assert second["newest"][0] == {
        "at": "2026-11-15T12:00:00Z",
        "event_id": str(EVENT),
        "payment_id": str(PAYMENT),
        "details": details,
        "links": {},
        "commands": {
            "event": f"paidonce events show {EVENT}",
            "payment": f"paidonce payments show {PAYMENT}",
        },
        "api": {"event": f"/api/v1/events/{EVENT}", "payment": f"/api/v1/payments/{PAYMENT}"},
    }
    assert await office.notifier.run_once() == 0, "nothing is pending"
    assert await office.messages() == [("ops", "SENT", 1)]


async def test_notifications_between_two_messages_are_combined(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5: the first goes at once, then at most one in so many seconds."""
    webhook(office, receiver, every_s=60)
    await office.notify(NotificationKind.CONFLICT)
    await office.notifier.run_once()
    for _ in range(3):
        await office.notify(NotificationKind.CONFLICT)
        await office.notifier.run_once()
    assert len(receiver.heard) == 1
    await office.pass_time(60)
    await office.notifier.run_once()
    assert [said["data"]["total"] for said in receiver.verified(SECRET)] == [1, 3]
    assert len(set(receiver.ids)) == 2


async def test_a_failed_message_is_sent_again_with_the_same_id_and_content(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5: after growing pauses; what comes meanwhile waits for the next one."""
    webhook(office, receiver)
    receiver.statuses = [500, 404]
    await office.notify(NotificationKind.CONFLICT)
    notifier = office.notifier
    for delay_s in (1, 2):
        assert await notifier.run_once() == 0
        assert await notifier.run_once() == 0, "it is too early"
        await office.notify(NotificationKind.DEAD_LETTER)
        await office.pass_time(delay_s, "next_attempt_at")
    assert await notifier.run_once() == 1
    assert len(receiver.heard) == 3
    assert len(set(receiver.ids)) == 1
    bodies = {body for _, body in receiver.heard}
    assert len(bodies) == 1
    assert receiver.verified(SECRET)[0]["data"]["total"] == 1
    await office.pass_time(60)
    await notifier.run_once()
    assert receiver.verified(SECRET)[-1]["data"]["total"] == 2


def test_delays_grow_to_an_hour() -> None:
    """OBS-5"""
    assert notifications_notifier.DELAYS_S[:4] == (1.0, 2.0, 4.0, 8.0)
    assert notifications_notifier.DELAYS_S[-1] == max(notifications_notifier.DELAYS_S) == 3600.0


async def test_notifications_of_a_message_that_failed_for_a_day_are_in_the_next_one(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5: a weekend's outage loses nothing."""
    webhook(office, receiver)
    receiver.statuses = [500, 500]
    await office.notify(NotificationKind.CONFLICT)
    await office.rows("UPDATE notifications SET at = now(), suppressed = 4")
    await office.notifier.run_once()
    await office.pass_time(86_400)
    await office.notify(NotificationKind.DEAD_LETTER)
    await office.notifier.run_once()
    assert await office.messages() == [("ops", "FAILED", 2)]
    assert await office.notifier.run_once() == 1
    subject = "Paidonce: 1 dead letter, 5 conflicts"
    assert receiver.verified(SECRET)[-1]["data"]["subject"] == subject


async def test_notifications_are_dropped_after_a_week(office: Office, receiver: Receiver) -> None:
    """OBS-5 SEC-8: nor does it wait for ever."""
    webhook(office, receiver)
    receiver.statuses = [500, 500]
    await office.notify(NotificationKind.CONFLICT)
    await office.rows("UPDATE notifications SET at = now() - interval '7 days'")
    await office.notifier.run_once()
    await office.pass_time(86_400)
    await office.notifier.run_once()
    assert await office.messages() == [("ops", "FAILED", 2)]
    await office.notify(NotificationKind.DEAD_LETTER)
    assert await office.notifier.run_once() == 1
    assert receiver.verified(SECRET)[-1]["data"]["subject"] == "Paidonce: 1 dead letter"


async def test_a_message_created_by_a_slow_clock_is_sent(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5: the clock of the last sender was ahead, and so is the id of its message."""
    webhook(office, receiver, every_s=60)
    await office.notify(NotificationKind.MISMATCH)
    assert await office.notifier.run_once() == 1
    ahead = first_id_at(datetime.now(UTC) + timedelta(hours=1))
    await office.rows(f"UPDATE notification_messages SET id = '{ahead}'")
    await office.pass_time(60)
    for sent in (1, 0):
        await office.notify(NotificationKind.DEAD_LETTER)
        assert await office.notifier.run_once() == sent, "one in so many seconds, as ever"
    assert len(receiver.heard) == 2


async def test_a_message_with_a_future_time_does_not_block_the_channel(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5: the clock of the database was ahead."""
    webhook(office, receiver)
    await office.notify(NotificationKind.MISMATCH)
    assert await office.notifier.run_once() == 1
    await office.pass_time(-86_400)
    await office.notify(NotificationKind.DEAD_LETTER)
    assert await office.notifier.run_once() == 1


async def test_a_channel_that_hangs_does_not_delay_others(
    office: Office, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5"""
    async with Receiver(is_hanging=True) as hanging:
        webhook(office, hanging, "slow")
        webhook(office, receiver, "quick", every_s=1)
        await office.notify(NotificationKind.CONFLICT)
        notifier = office.notifier
        monkeypatch.setattr(notifications_notifier, "POLL_S", 0.01)
        running = asyncio.create_task(notifier.run())
        async with asyncio.timeout(120):
            while len(receiver.heard) < 3:
                await office.pass_time(1)
                await office.notify(NotificationKind.CONFLICT)
                await asyncio.sleep(0.01)
        assert len(hanging.heard) == 1
        notifier.finish()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class BrokenSender:
    """Fails in a way that nobody has foreseen."""

    async def send(self, message: NotificationMessage) -> str:
        raise RuntimeError("a defect")


async def test_a_channel_that_raises_does_not_stop_the_others(
    office: Office, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5 OPS-3: its failures are counted, and the notifier is degraded."""
    webhook(office, receiver, "broken")
    office.channels["broken"] = replace(office.channels["broken"], sender=BrokenSender())
    webhook(office, receiver, "good", every_s=1)
    monkeypatch.setattr(notifications_notifier, "POLL_S", 0.01)
    counted = metrics.total(metrics.SERVICE_CRASHES)
    notifier = office.notifier
    running = asyncio.create_task(notifier.run())
    async with asyncio.timeout(120):
        while len(receiver.heard) < 2 or not notifier.is_degraded:
            await office.notify(NotificationKind.CONFLICT)
            await office.pass_time(1)
            await asyncio.sleep(0.01)
    notifier.finish()
    await running
    assert metrics.total(metrics.SERVICE_CRASHES) > counted
    assert ("broken", "SENT") not in {one[:2] for one in await office.messages()}


async def test_one_process_at_a_time_sends_notifications(
    office: Office, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5: and when it is gone another one goes on."""
    monkeypatch.setattr(notifications_notifier, "POLL_S", 0.01)
    monkeypatch.setattr(leader_module, "POLL_S", 0.01)
    webhook(office, receiver)
    await office.notify(NotificationKind.CONFLICT)
    async with Leader(office.database).lead(ROLE) as leadership:
        assert leadership is not None
        assert await office.notifier.run_once() == 0
        assert receiver.heard == []
    notifiers = [office.notifier for _ in range(3)]
    running = [asyncio.create_task(one.run()) for one in notifiers]
    async with asyncio.timeout(120):
        while not await office.messages():
            await asyncio.sleep(0.01)
    for one in notifiers:
        one.finish()
    await asyncio.gather(*running)
    assert await office.messages() == [("ops", "SENT", 1)]
    assert len(receiver.heard) == 1


async def test_redirects_are_not_followed(office: Office, receiver: Receiver) -> None:
    """OBS-5: what is signed for one place goes to no other."""
    webhook(office, receiver)
    receiver.is_redirecting = True
    await office.notify(NotificationKind.CONFLICT)
    assert await office.notifier.run_once() == 0
    assert len(receiver.heard) == 1
    (row,) = await office.rows("SELECT error FROM notification_messages")
    assert row["error"] == "answered 307"


async def test_slack_gets_escaped_text(office: Office, receiver: Receiver) -> None:
    """OBS-5 SEC-7"""
    office.channel("chat", kind="slack", url=receiver.url)
    said = {"code": "CONFLICT", "order": "<!channel> & co\n- 2026, forged"}
    await office.notify(NotificationKind.CONFLICT, details=said)
    assert await office.notifier.run_once() == 1
    (text,) = receiver.texts
    assert text.splitlines() == [
        "Paidonce: 1 conflict",
        "",
        "1 conflict of shop, newest first:",
        "- `2026-11-15T12:00:00Z, CONFLICT, order &lt;!channel&gt; &amp; co - 2026, forged`, "
        f"paidonce events show {EVENT}, paidonce payments show {PAYMENT}",
    ]


def mail_channel(office: Office, server: MailServer, login: str = "") -> None:
    office.channel(
        "post",
        kind="email",
        smtp=f"smtp://{login}127.0.0.1:{server.port}",
        to=("a@example.com", "Bee <b@example.com>"),
        **{"from": "Paidonce <ops@shop.example>"},
    )


async def test_an_e_mail_is_sent(office: Office) -> None:
    """OBS-5: with the id of the message, so that a mailbox shows it once."""
    async with MailServer(password="p@ss") as server:
        mail_channel(office, server, "me:p%40ss@")
        await office.notify(NotificationKind.DUPLICATE_PAYMENT, 2)
        assert await office.notifier.run_once() == 1
        (mail,) = server.mails
        ((sender, to),) = server.envelopes
    (row,) = await office.rows("SELECT id FROM notification_messages")
    assert mail["subject"] == "Paidonce: 2 duplicate payments"
    assert mail["message-id"] == f"<{row['id']}@shop.example>"
    assert mail["auto-submitted"] == "auto-generated"
    assert f"paidonce payments show {PAYMENT}" in mail.get_content()
    assert "ops@shop.example" in sender
    assert len(to) == 2


@pytest.mark.parametrize("trouble", ["wrong password", "refused", "nobody there"])
async def test_a_failed_e_mail_is_retried(office: Office, trouble: str) -> None:
    """OBS-5 SEC-7: what went wrong is kept, and no password."""
    async with MailServer(password="right", refuses=trouble == "refused") as server:
        if trouble == "nobody there":
            await server.__aexit__()
        mail_channel(office, server, "me:hunter2@" if trouble == "wrong password" else "")
        await office.notify(NotificationKind.CONFLICT)
        assert await office.notifier.run_once() == 0
    (row,) = await office.rows("SELECT status, error FROM notification_messages")
    assert row["status"] == "PENDING"
    expected = {"wrong password": "535", "refused": "451", "nobody there": "ConnectionRefused"}
    assert expected[trouble] in row["error"]
    assert "hunter2" not in row["error"]


async def test_a_password_is_not_sent_unencrypted(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5 SEC-7: to another machine that offers no encryption."""
    async with MailServer(password="p") as server:
        office.channel(
            "post", kind="email", smtp=f"smtp://me:p@elsewhere.example:{server.port}",
            to=("a@example.com",), **{"from": "ops@example.com"},
        )  # fmt: skip
        monkeypatch.setattr(
            "socket.getaddrinfo",
            lambda host, port, *_, **__: [(2, 1, 6, "", ("127.0.0.1", port))],
        )
        await office.notify(NotificationKind.CONFLICT)
        assert await office.notifier.run_once() == 0
        assert not any("AUTH" in line for line in server.commands)
    (row,) = await office.rows("SELECT error FROM notification_messages")
    assert "STARTTLS" in row["error"]


async def test_an_e_mail_to_a_server_that_hangs_times_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5"""
    monkeypatch.setattr("paidonce.notifications.mail.MAIL_TIMEOUT_S", 0.2)
    async with MailServer(is_hanging=True) as server:
        mail_channel(office, server)
        await office.notify(NotificationKind.CONFLICT)
        assert await office.notifier.run_once() == 0
    (row,) = await office.rows("SELECT error FROM notification_messages")
    assert "no result within" in row["error"]


def told(kind: str, source: str, number: int, **details: str) -> list[PendingNotification]:
    return [PendingNotification(kind, source, NOW, EVENT, None, details, 0) for _ in range(number)]


def test_a_message_has_a_bounded_size() -> None:
    """OBS-5 SEC-8: however many notices, kinds and sources there are, and whatever they say."""
    many = [one for n in range(50) for one in told("conflict", f"s-{n:02}", 20, message="m" * 9999)]
    content = digest.compose([replace(one, suppressed=10) for one in many])
    assert content["total"] == 50 * 20 * 11
    assert len(content["groups"]) == digest.MAX_GROUPS
    assert content["left_out"] == 30 * 20 * 11
    assert sum(len(group["newest"]) for group in content["groups"]) == 100
    assert len(str(content)) < 100_000
    text = digest.render_text(content, 3_500)
    assert len(text) <= 3_500
    assert text.endswith("the message is too long.")
    assert "and 215 more" in digest.render_text(content, 100_000)


async def test_metrics_show_pending_notifications_and_their_age(
    office: Office, receiver: Receiver
) -> None:
    """OBS-5 OBS-2: including those of a message that is not sent yet."""
    webhook(office, receiver)
    receiver.statuses = [500]
    await office.notify(NotificationKind.CONFLICT, 3)

    async def pending() -> tuple[int, bool]:
        async with office.database.connection() as connection:
            (found,) = await notifications_store.count_pending(connection, ["ops"])
        return found.number, found.oldest_s > 0

    assert await pending() == (3, True)
    await office.notifier.run_once()
    assert await pending() == (3, True)
    await office.notify(NotificationKind.CONFLICT)
    await office.pass_time(1)
    await office.notifier.run_once()
    assert await pending() == (1, True)
    await office.pass_time(60)
    await office.notifier.run_once()
    assert await pending() == (0, False)
