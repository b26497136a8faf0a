"""The ways to people: a signed webhook, an e-mail, a Slack-style URL.

Each takes one message and says whether it was taken. None follows anybody anywhere, waits for long,
or reads much of what is answered.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parseaddr
from typing import Final, Protocol, assert_never
from urllib.parse import urlsplit

import orjson
from yarl import URL

from paidonce.domain.email import is_email
from paidonce.domain.notices import NoticeKind
from paidonce.engine.composing import text_of
from paidonce.engine.mailing import MailServer, mail_server, send_mail
from paidonce.errors import ConfigurationError, NotTakenError
from paidonce.providers.standard_webhooks import FAMILY, Envelope, symmetric_secret, v1
from paidonce.settings import NotificationSettings, resolve_secret
from paidonce.store.notices import Message, Telling

CONNECT_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0
MAX_REPLY_BYTES: Final = 1_024
MAX_SLACK_TEXT: Final = 3_500
MAX_MAIL_TEXT: Final = 50_000
TYPE: Final = "paidonce.notices"


class Way(Protocol):
    """How a message gets there."""

    async def send(self, message: Message) -> str:
        """Send it, and return what was answered. Raises NotTakenError."""
        ...


@dataclass(frozen=True, slots=True)
class Channel:
    """A configured way to people, and what they want to know."""

    name: str
    kind: str
    way: Way
    about: frozenset[NoticeKind]
    every_s: float


def told_to(channels: Mapping[str, Channel]) -> Telling:
    """The names of the channels that want each kind; empty without channels."""
    found = {
        kind: tuple(one.name for one in channels.values() if kind in one.about)
        for kind in NoticeKind
    }
    return {kind: names for kind, names in found.items() if names}


def configured_channels(settings: Mapping[str, NotificationSettings]) -> dict[str, Channel]:
    """The channels by name. Raises ConfigurationError."""
    return {name: _channel(name, one) for name, one in settings.items()}


@dataclass(frozen=True, slots=True)
class Webhook:
    """POSTs the notices as JSON, signed as Standard Webhooks says."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)

    async def send(self, message: Message) -> str:
        body = orjson.dumps(
            {"type": TYPE, "timestamp": message.at, "data": message.content},
            option=orjson.OPT_UTC_Z,
        )
        signed = Envelope(str(message.id), str(int(time.time())), "")
        signature = v1(self.secret, signed.signed(body)).decode()
        headers = {
            f"{FAMILY}-id": signed.id,
            f"{FAMILY}-timestamp": signed.timestamp,
            f"{FAMILY}-signature": f"v1,{signature}",
        }
        return await _post(self.url, body, headers)


@dataclass(frozen=True, slots=True)
class Slack:
    """POSTs a text, in the form that Slack and those who imitate it take."""

    url: str = field(repr=False)

    async def send(self, message: Message) -> str:
        text = text_of(message.content, MAX_SLACK_TEXT)
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return await _post(self.url, orjson.dumps({"text": escaped}), {})


@dataclass(frozen=True, slots=True)
class Mail:
    """Sends a plain text by SMTP."""

    server: MailServer
    sender: str
    to: tuple[str, ...]

    async def send(self, message: Message) -> str:
        text = text_of(message.content, MAX_MAIL_TEXT)
        subject = str(message.content["subject"])
        return await send_mail(self.server, self.sender, self.to, subject, text, message.id)


async def _post(url: str, body: bytes, headers: Mapping[str, str]) -> str:
    """What was answered, if that was a 2xx. Raises NotTakenError, which tells no URL."""
    import aiohttp  # it takes long, and most services tell nobody

    timeout = aiohttp.ClientTimeout(CALL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    said = {"content-type": "application/json", "user-agent": "paidonce", **headers}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.post(
                URL(url, encoded=True), data=body, headers=said, allow_redirects=False
            ) as response,
        ):
            status = response.status
            await response.content.read(MAX_REPLY_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise NotTakenError(f"no answer: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise NotTakenError(f"it answered {status}")
    return f"it answered {status}"


def _channel(name: str, settings: NotificationSettings) -> Channel:
    key = f"notifications.{name}"
    way = _way(key, settings)
    return Channel(name, settings.kind, way, _about(key, settings), settings.every_s)


def _way(key: str, settings: NotificationSettings) -> Way:
    match settings.kind:
        case "webhook":
            return _webhook(key, settings)
        case "slack":
            return _slack(key, settings)
        case "email":
            return _mail(key, settings)
        case _:
            assert_never(settings.kind)


def _about(key: str, settings: NotificationSettings) -> frozenset[NoticeKind]:
    if settings.about is None:
        return frozenset(NoticeKind)
    known = ", ".join(NoticeKind)
    for one in settings.about:
        if one not in set(NoticeKind):
            raise ConfigurationError(f"{key}.about = {one!r}: there is no such kind; use {known}")
    if not settings.about:
        raise ConfigurationError(f"{key}.about = []: name at least one of {known}")
    return frozenset(map(NoticeKind, settings.about))


def _webhook(key: str, settings: NotificationSettings) -> Way:
    _refuse(key, settings, "smtp", "sender", "to")
    form = 'such as "env:NOTICES_SECRET" with whsec_ and base64'
    if settings.secret is None:
        raise ConfigurationError(f"{key}.secret: is needed to sign what is sent, {form}")
    secret = resolve_secret(settings.secret, f"{key}.secret")
    return Webhook(_url(key, settings), symmetric_secret(secret, f"{key}.secret", form))


def _slack(key: str, settings: NotificationSettings) -> Way:
    _refuse(key, settings, "secret", "smtp", "sender", "to")
    return Slack(_url(key, settings))


def _mail(key: str, settings: NotificationSettings) -> Way:
    _refuse(key, settings, "url", "secret")
    if settings.smtp is None:
        raise ConfigurationError(f'{key}.smtp: is needed, such as "env:SMTP_URL"')
    server = mail_server(resolve_secret(settings.smtp, f"{key}.smtp"), f"{key}.smtp")
    if not settings.to:
        raise ConfigurationError(f'{key}.to: is needed, such as ["ops@example.com"]')
    sender = _address(f"{key}.from", settings.sender or "")
    return Mail(server, sender, tuple(_address(f"{key}.to", one) for one in settings.to))


def _refuse(key: str, settings: NotificationSettings, *others: str) -> None:
    """What another kind of channel has is a mistake here, and would be passed over in silence."""
    for other in others:
        if getattr(settings, other):
            shown = "from" if other == "sender" else other
            raise ConfigurationError(f'{key}.{shown}: kind = "{settings.kind}" has no such setting')


def _url(key: str, settings: NotificationSettings) -> str:
    if settings.url is None:
        raise ConfigurationError(f'{key}.url: is needed, such as "env:NOTICES_URL"')
    url = resolve_secret(settings.url, f"{key}.url").strip()
    try:
        parts = urlsplit(url)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not is_fit or not is_plain:
        raise ConfigurationError(f"{key}.url (hidden): use https://host/path, or http:// at home")
    return url


def _address(key: str, text: str) -> str:
    """An address, with or without a name before it."""
    _, address = parseaddr(text)
    if not is_email(address) or not text.isprintable() or not address.isascii():
        raise ConfigurationError(
            f'{key} = {text!r}: give an address, such as "Paidonce <ops@example.com>"'
        )
    return text
