"""Sends e-mails by SMTP: encrypted wherever the server offers it, and never a password in clear."""

import asyncio
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import UUID

from paidonce.errors import ConfigurationError, NotTakenError

STEP_TIMEOUT_S: Final = 10.0
MAIL_TIMEOUT_S: Final = 30.0

_PORTS: Final = {"smtp": 587, "smtps": 465}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where e-mails are given to."""

    host: str
    port: int
    is_encrypted: bool  # from the first byte; otherwise STARTTLS is used where it is offered
    user: str = ""
    password: str = field(default="", repr=False)


def mail_server(url: str, key: str) -> MailServer:
    """The server that a URL names. Raises ConfigurationError, which tells nothing of the URL."""
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
    return MailServer(parts.hostname, port, parts.scheme == "smtps", user, password)


async def send_mail(
    server: MailServer, sender: str, to: Sequence[str], subject: str, text: str, message_id: UUID
) -> str:
    """Send it, and return what the server said. Raises NotTakenError."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, ", ".join(to), subject
    mail["Date"] = formatdate()
    mail["Message-ID"] = f"<{message_id}@{parseaddr(sender)[1].rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    line: list[smtplib.SMTP] = []
    try:
        async with asyncio.timeout(MAIL_TIMEOUT_S):
            return await _in_thread(lambda: _delivered(server, mail, line))
    except TimeoutError:
        _hang_up(line)
        raise NotTakenError(f"it took longer than {MAIL_TIMEOUT_S:.0f} s") from None


def _delivered(server: MailServer, mail: EmailMessage, line: list[smtplib.SMTP]) -> str:
    try:
        with _connected(server) as connection:
            line.append(connection)
            _encrypt(server, connection)
            if server.user:
                connection.login(server.user, server.password)
            refused = connection.send_message(mail)
    except smtplib.SMTPResponseException as error:
        raise NotTakenError(f"{type(error).__name__}: it answered {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NotTakenError(f"no answer: {type(error).__name__}") from None
    number = len(mail["To"].addresses)
    return f"it was taken for {number - len(refused)} of {number}"


def _connected(server: MailServer) -> smtplib.SMTP:
    if server.is_encrypted:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=STEP_TIMEOUT_S, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=STEP_TIMEOUT_S)


def _encrypt(server: MailServer, connection: smtplib.SMTP) -> None:
    """Use STARTTLS where it is offered. Raises NotTakenError before a password goes in clear."""
    if server.is_encrypted:
        return
    connection.ehlo_or_helo_if_needed()
    if connection.has_extn("starttls"):
        connection.starttls(context=ssl.create_default_context())
    elif server.user and not _is_here(server.host):
        raise NotTakenError("it offers no STARTTLS, and a password is not sent in clear")


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hang_up(line: Sequence[smtplib.SMTP]) -> None:
    """End a conversation that takes too long; its thread ends with it."""
    for connection in line:
        if connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


async def _in_thread(work: Callable[[], T]) -> T:
    """What the work returns or raises. Its thread is one that nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(tell, *outcome)
        except RuntimeError:
            return  # the loop is closed: the process is about to end

    threading.Thread(target=run, name="mail", daemon=True).start()
    return await done
