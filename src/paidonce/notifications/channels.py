"""Channels: a signed webhook, an e-mail address, a Slack-style URL.

Senders follow no redirects, have short timeouts, and read little of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parseaddr
from typing import Final, Protocol
from urllib.parse import urlsplit

import orjson
from yarl import URL

from paidonce.clock import CLOCK
from paidonce.core.email import is_email
from paidonce.core.notifications import NotificationKind
from paidonce.errors import ConfigurationError, NotificationSendError, did_you_mean
from paidonce.ids import new_id
from paidonce.notifications.digest import compose_test, render_text
from paidonce.notifications.mail import MailSender, parse_smtp_url
from paidonce.notifications.model import NotificationMessage, Routes
from paidonce.providers.standard_webhooks import decode_secret, signed_headers
from paidonce.settings.secrets import resolve_secret
from paidonce.settings.sections import NotificationSettings

CONNECT_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0
MAX_REPLY_BYTES: Final = 1_024
MAX_SLACK_TEXT: Final = 3_500
TYPE: Final = "paidonce.notifications"


class Sender(Protocol):
    """Sends messages to one channel."""

    async def send(self, message: NotificationMessage) -> str:
        """Send a message; returns the answer. Raises NotificationSendError."""
        ...


@dataclass(frozen=True, slots=True)
class Channel:
    """A configured channel, and the kinds of notifications that it gets."""

    name: str
    kind: str
    sender: Sender
    about: frozenset[NotificationKind]
    every_s: float


def routes(channels: Mapping[str, Channel]) -> Routes:
    """The names of the channels of each kind."""
    found = {
        kind: tuple(one.name for one in channels.values() if kind in one.about)
        for kind in NotificationKind
    }
    return {kind: names for kind, names in found.items() if names}


def load_channels(settings: Mapping[str, NotificationSettings]) -> dict[str, Channel]:
    """The configured channels by name. Raises ConfigurationError."""
    return {name: _channel(name, one) for name, one in settings.items()}


@dataclass(frozen=True, slots=True)
class ChannelTest:
    """The result of a test message."""

    channel: str
    kind: str
    is_sent: bool
    answer: str


async def send_test(channel: Channel) -> ChannelTest:
    """Send a test message, which is not stored."""
    content = compose_test(channel.name)
    message = NotificationMessage(new_id(), CLOCK.now(), content, attempts=1, age_s=0.0)
    try:
        answer = await channel.sender.send(message)
    except NotificationSendError as error:
        return ChannelTest(channel.name, channel.kind, False, str(error))
    return ChannelTest(channel.name, channel.kind, True, answer)


@dataclass(frozen=True, slots=True)
class WebhookSender:
    """POSTs the content as JSON, signed according to Standard Webhooks."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)

    async def send(self, message: NotificationMessage) -> str:
        body = orjson.dumps(
            {"type": TYPE, "timestamp": message.at, "data": message.content},
            option=orjson.OPT_UTC_Z,
        )
        headers = signed_headers(str(message.id), CLOCK.now_s(), body, self.secret)
        return await _post(self.url, body, headers)


@dataclass(frozen=True, slots=True)
class SlackSender:
    """POSTs a text in the format of Slack."""

    url: str = field(repr=False)

    async def send(self, message: NotificationMessage) -> str:
        text = render_text(message.content, MAX_SLACK_TEXT, as_code)
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        body = {"text": escaped, "unfurl_links": False, "unfurl_media": False}
        return await _post(self.url, orjson.dumps(body), {})


def as_code(text: str) -> str:
    """The text as code, in which neither markup nor an address of a page has an effect."""
    return "`" + text.replace("`", "'") + "`"


async def _post(url: str, body: bytes, headers: Mapping[str, str]) -> str:
    """The answer, if it is a 2xx. Raises NotificationSendError, whose text has no URL."""
    import aiohttp  # the import is slow, and most services have no channels

    timeout = aiohttp.ClientTimeout(CALL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    all_headers = {"content-type": "application/json", "user-agent": "paidonce", **headers}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.post(
                URL(url, encoded=True), data=body, headers=all_headers, allow_redirects=False
            ) as response,
        ):
            status = response.status
            await response.content.read(MAX_REPLY_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise NotificationSendError(f"no answer: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise NotificationSendError(f"answered {status}")
    return f"answered {status}"


def _channel(name: str, settings: NotificationSettings) -> Channel:
    key = f"notifications.{name}"
    sender = {"webhook": _webhook, "slack": _slack, "email": _mail}[settings.kind](key, settings)
    return Channel(name, settings.kind, sender, _about(key, settings), settings.every_s)


def _about(key: str, settings: NotificationSettings) -> frozenset[NotificationKind]:
    if settings.about is None:
        return frozenset(NotificationKind)
    kinds = ", ".join(NotificationKind)
    for one in settings.about:
        if one not in set(NotificationKind):
            hint = did_you_mean(one, NotificationKind)
            raise ConfigurationError(f"{key}.about = {one!r}: unknown kind; use {kinds}{hint}")
    if not settings.about:
        raise ConfigurationError(f"{key}.about = []: give at least one of {kinds}")
    return frozenset(map(NotificationKind, settings.about))


def _webhook(key: str, settings: NotificationSettings) -> Sender:
    _refuse(key, settings, "smtp", "sender", "to")
    form = 'such as "env:NOTIFICATIONS_SECRET" with whsec_ and base64'
    if settings.secret is None:
        raise ConfigurationError(f"{key}.secret: is required to sign messages, {form}")
    secret = resolve_secret(settings.secret, f"{key}.secret")
    return WebhookSender(_url(key, settings), decode_secret(secret, f"{key}.secret", form))


def _slack(key: str, settings: NotificationSettings) -> Sender:
    _refuse(key, settings, "secret", "smtp", "sender", "to")
    return SlackSender(_url(key, settings))


def _mail(key: str, settings: NotificationSettings) -> Sender:
    _refuse(key, settings, "url", "secret")
    if settings.smtp is None:
        raise ConfigurationError(f'{key}.smtp: is required, such as "env:SMTP_URL"')
    server = parse_smtp_url(resolve_secret(settings.smtp, f"{key}.smtp"), f"{key}.smtp")
    if not settings.to:
        raise ConfigurationError(f'{key}.to: is required, such as ["ops@example.com"]')
    sender = _address(f"{key}.from", settings.sender or "")
    return MailSender(server, sender, tuple(_address(f"{key}.to", one) for one in settings.to))


def _refuse(key: str, settings: NotificationSettings, *others: str) -> None:
    """Refuse settings of other kinds of channels, which would be ignored."""
    for other in others:
        if getattr(settings, other):
            shown = "from" if other == "sender" else other
            raise ConfigurationError(
                f'{key}.{shown}: kind = "{settings.kind}" does not have this setting'
            )


def _url(key: str, settings: NotificationSettings) -> str:
    if settings.url is None:
        raise ConfigurationError(f'{key}.url: is required, such as "env:NOTIFICATIONS_URL"')
    url = resolve_secret(settings.url, f"{key}.url").strip()
    try:
        parts = urlsplit(url)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not is_fit or not is_plain:
        raise ConfigurationError(
            f"{key}.url (hidden): use https://host/path, or http:// in a local network"
        )
    return url


def _address(key: str, text: str) -> str:
    """An e-mail address, with or without a name."""
    _, address = parseaddr(text)
    if not is_email(address) or not text.isprintable() or not address.isascii():
        raise ConfigurationError(
            f'{key} = {text!r}: give an address, such as "Paidonce <ops@example.com>"'
        )
    return text
