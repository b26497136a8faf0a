"""Sends e-mails by SMTP, encrypted if the server offers it; passwords only encrypted."""

import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote, urlsplit

from paidonce.core.printable import printable
from paidonce.errors import ConfigurationError, NotificationSendError
from paidonce.notifications.digest import render_text
from paidonce.notifications.model import NotificationMessage
from paidonce.runtime.daemon_thread import DaemonThread

STEP_TIMEOUT_S: Final = 10.0
MAIL_TIMEOUT_S: Final = 30.0
MAX_TEXT: Final = 50_000

_PORTS: Final = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """An SMTP server, and the account to use."""

    host: str
    port: int
    is_tls: bool  # otherwise STARTTLS is used if it is offered
    user: str = ""
    password: str = field(default="", repr=False)


def parse_smtp_url(url: str, key: str) -> SmtpServer:
    """The server of a URL. Raises ConfigurationError, whose text quotes nothing of it."""
    form = "use smtp://user:password@host:587 or smtps://…:465, and write @ as %40 in the password"
    try:
        parts = urlsplit(url.strip())
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise ConfigurationError(f"{key} (hidden): {form}") from None
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigurationError(f"{key} (hidden): {form}")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password):
        raise ConfigurationError(f"{key} (hidden): give user and password, or neither; {form}")
    return SmtpServer(parts.hostname, port, parts.scheme == "smtps", user, password)


@dataclass(frozen=True, slots=True)
class MailSender:
    """Sends a plain text by SMTP."""

    server: SmtpServer
    sender: str
    to: tuple[str, ...]

    async def send(self, message: NotificationMessage) -> str:
        mail = EmailMessage()
        mail["From"], mail["To"] = self.sender, ", ".join(self.to)
        mail["Subject"] = printable(str(message.content["subject"]))
        mail["Date"] = formatdate()
        mail["Message-ID"] = f"<{message.id}@{parseaddr(self.sender)[1].rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(render_text(message.content, MAX_TEXT, without_links))
        connections: list[smtplib.SMTP] = []
        try:
            return await DaemonThread("mail").finish(
                lambda: _deliver(self.server, mail, connections), MAIL_TIMEOUT_S
            )
        except TimeoutError:
            _shut_down(connections)
            raise NotificationSendError(f"no result within {MAIL_TIMEOUT_S:.0f} s") from None


def without_links(text: str) -> str:
    """The text without anything that mail readers usually make a link of."""
    return text.replace("://", "[:]//").replace("www.", "www[.]")


def _deliver(server: SmtpServer, mail: EmailMessage, connections: list[smtplib.SMTP]) -> str:
    try:
        with _connect(server) as connection:
            connections.append(connection)
            _encrypt(server, connection)
            if server.user:
                connection.login(server.user, server.password)
            refused = connection.send_message(mail)
    except smtplib.SMTPResponseException as error:
        raise NotificationSendError(f"{type(error).__name__}: answered {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NotificationSendError(f"no answer: {type(error).__name__}") from None
    number = len(mail["To"].addresses)
    return f"accepted for {number - len(refused)} of {number}"


def _connect(server: SmtpServer) -> smtplib.SMTP:
    if server.is_tls:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=STEP_TIMEOUT_S, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=STEP_TIMEOUT_S)


def _encrypt(server: SmtpServer, connection: smtplib.SMTP) -> None:
    """Use STARTTLS if it is offered. Raises NotificationSendError if a password needs it."""
    if server.is_tls:
        return
    connection.ehlo_or_helo_if_needed()
    if connection.has_extn("starttls"):
        connection.starttls(context=ssl.create_default_context())
    elif server.user and not _is_loopback(server.host):
        raise NotificationSendError("no STARTTLS: a password is not sent unencrypted")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shut_down(connections: Sequence[smtplib.SMTP]) -> None:
    """Close connections that take too long; their thread ends then."""
    for connection in connections:
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
