"""Alipay's asynchronous notifications: forms, signed with RSA2 (SHA256withRSA, PKCS#1 v1.5).

The signature covers the string `name=value&…` of the parameters, URL-decoded once and sorted by
name, without `sign`. Payments also leave out `sign_type`; messages of other products keep it. Some
products leave out parameters without a value: each variant is tried. All of this works on bytes,
whatever the charset (UTF-8 or one of the GB family); only ASCII fields are read, whose bytes are
the same in each.

The signed string is ambiguous, because its values are not escaped: who can have `&out_trade_no=…`
written into a text that Alipay signs could send the same string split into other parameters. A
delivery is rejected when a name that counts appears in the string anywhere but at its own
parameter.

A retry keeps `notify_id`, with a new time and signature: it is the key. `refund_fee` is the total
refunded so far. Times are in China's time zone. An answer of exactly `success` ends the retries;
after any other, Alipay retries for a day.

https://opendocs.alipay.com/open/270/105902 and the official SDKs, checked on 2026-11-16.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import UUID

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.input import to_utc
from paidonce.core.money import Money
from paidonce.errors import ConfigurationError, InvalidSignatureError, MalformedError
from paidonce.providers import contract
from paidonce.providers.alipay.samples import CHINA, SampleKey, build_notification
from paidonce.providers.fields import EventFields, canonical, external_ids
from paidonce.providers.public_keys import PublicKey, der, is_signed_by_any, load_public_key
from paidonce.providers.signing import check_timestamp, decode_base64

MAX_PARAMETERS: Final = 500
CHARSETS: Final = frozenset({"utf-8", "gbk", "gb2312", "gb18030"})

TRADE: Final = b"trade_status_sync"
EVENT_TYPES: Final = {
    "WAIT_BUYER_PAY": EventType.PENDING,
    "TRADE_SUCCESS": EventType.PAID,
    "TRADE_FINISHED": EventType.PAID,
    "TRADE_CLOSED": EventType.VOIDED,
}
"""What each status of a trade means, unless it was refunded."""

COUNTS: Final = frozenset(
    b"app_id charset gmt_close gmt_payment gmt_refund method msg_method notify_id notify_time "
    b"notify_type out_trade_no refund_fee seller_id sign sign_type total_amount trade_no "
    b"trade_status trans_currency".split()
)
"""The parameters that are read here; no other text may look like one of them."""

_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_WORD: Final = re.compile(rb"[!-%'-<>-~]{1,128}")  # printable, without & and =
_AMOUNT: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,3})?")
_TIME: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")

Parameters = Mapping[bytes, bytes]


class AlipayNotification(NamedTuple):
    """A parsed notification; without a status it is not about a trade."""

    fields: EventFields
    status: str | None = None
    refunded: Money | None = None  # the total so far
    paid_at: datetime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Alipay(contract.Provider):
    """A source that receives the notifications of one app and seller."""

    name: ClassVar = "alipay"
    content_types: ClassVar = frozenset({contract.FORM_TYPE})
    samples_are_process_local: ClassVar = True

    public_keys: tuple[PublicKey, ...]
    recipients: Mapping[bytes, bytes]
    tolerance_s: int | None
    sample_key: SampleKey | None = field(default=None, repr=False)
    """Signs test webhooks; None in production."""

    def verify(self, delivery: contract.Delivery) -> None:
        try:
            parameters = delivery.parse_once(_parse_parameters)
        except MalformedError as error:
            raise InvalidSignatureError(str(error)) from None
        self._check_signature(parameters)
        self._check_recipients(parameters)
        self._check_time(parameters, delivery.received_at)

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        fields, status, refunded, _ = delivery.parse_once(_parse_notification)
        amount = canonical(fields.amount)
        digest = contract.fingerprint(
            fields.payment_id, fields.order, status, amount, fields.currency, refunded
        )
        assert fields.event_id is not None
        return fields.identity(fields.event_id, digest)

    def translate(self, delivery: contract.Delivery) -> PaymentEvent | Ignored:
        fields, status, refunded, paid_at = delivery.parse_once(_parse_notification)
        if status is None:
            return Ignored(Code.NON_SUCCESS_STATUS, "the notification is not about a payment")
        event_type = EVENT_TYPES.get(status)
        if event_type is None:
            return Ignored(Code.NON_SUCCESS_STATUS, "the trade status has no effect")
        if refunded is not None and event_type is not EventType.PENDING:
            # A refund keeps the status of its trade or closes it.
            return fields.payment_event(EventType.REFUNDED, fields.money(), refunded, paid_at)
        if event_type is EventType.PAID:
            return fields.payment_event(EventType.PAID, fields.money(), paid_at=paid_at)
        return fields.payment_event(event_type)

    def unreadable_payment(self, delivery: contract.Delivery) -> tuple[ExternalId, ...]:
        parameters = delivery.parse_once(_parse_parameters)
        status = _text(parameters, b"trade_status")
        is_paid = status is not None and EVENT_TYPES.get(status) is EventType.PAID
        if not is_paid or parameters.get(b"refund_fee") or parameters.get(b"gmt_refund"):
            return ()
        return external_ids(payment=_text(parameters, b"trade_no"))

    def signing_keys(self) -> tuple[bytes, ...]:
        return tuple(der(key) for key in self.public_keys)

    def recipient(self) -> str | None:
        return " ".join(value.decode() for value in self.recipients.values())

    def signature_method(self, delivery: contract.Delivery) -> str:
        return "rsa2"

    def success_response(
        self, status: str, event_id: UUID, delivery: contract.Delivery
    ) -> contract.ResponseBody:
        return "text/plain", b"success"

    def error_response(self, code: str, detail: str) -> contract.ResponseBody:
        return "text/plain", b"fail"

    def default_currency(self) -> str:
        return "CNY"

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        if self.sample_key is None:
            raise ConfigurationError("a public key cannot sign: there are no test webhooks here")
        recipients = {name.decode(): value.decode() for name, value in self.recipients.items()}
        body = build_notification(sample, recipients, self.sample_key)
        return {"content-type": contract.FORM_TYPE}, body

    def _check_signature(self, parameters: Parameters) -> None:
        signature = decode_base64(parameters.get(b"sign", b"").decode("ascii", "replace"))
        if not signature or parameters.get(b"sign_type") != b"RSA2":
            raise InvalidSignatureError("there is no signature of type RSA2")
        keys = self.public_keys + (self.sample_key.public_keys if self.sample_key else ())
        for pairs in _signed_pairs(parameters):
            content = b"&".join(b"%b=%b" % pair for pair in pairs)
            if is_signed_by_any(keys, [signature], content):
                if _is_ambiguous(content, pairs):
                    raise InvalidSignatureError("the signed content can be read in two ways")
                return
        raise InvalidSignatureError("the signature does not match the parameters")

    def _check_recipients(self, parameters: Parameters) -> None:
        """Reject notifications to others; only those of payments must name both recipients."""
        for name, wanted in self.recipients.items():
            given = parameters.get(name, b"")
            if given != wanted and (given or _kind(parameters) == TRADE):
                raise InvalidSignatureError(f"{name.decode()} is not that of this source")

    def _check_time(self, parameters: Parameters, received_at: datetime) -> None:
        try:
            sent_at = _time(parameters, b"notify_time")
        except MalformedError:
            return  # authentic; it is rejected when it is read
        if sent_at is not None:
            check_timestamp(sent_at.timestamp(), received_at, self.tolerance_s)


def configure(config: contract.ProviderConfig) -> Alipay:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"public_keys", "app_id", "seller_id"})
    if config.secrets:
        raise ConfigurationError(f"{config.key}.secrets: Alipay has none; give public_keys")
    keys = config.require_secret_list("public_keys", '["file:alipay.pem"]')
    public_keys = tuple(load_public_key(text, key, "rsa-sha256") for key, text in keys)
    recipients = {
        b"app_id": config.require_text("app_id", "2021000000000000").encode(),
        b"seller_id": config.require_text("seller_id", "2088000000000000").encode(),
    }
    sample_key = SampleKey() if config.accepts_test else None
    return Alipay(public_keys, recipients, config.tolerance_s, sample_key)


def _parse_parameters(delivery: contract.Delivery) -> Parameters:
    """Parse the form into bytes, decoded once. Raises MalformedError."""
    pairs = delivery.body.replace(b"+", b" ").split(b"&", MAX_PARAMETERS)
    if len(pairs) > MAX_PARAMETERS:
        raise MalformedError(f"the form has over {MAX_PARAMETERS} parameters")
    parameters: dict[bytes, bytes] = {}
    for pair in pairs:
        name, equals, value = pair.partition(b"=")
        if not equals or _ESCAPE.search(pair):
            raise MalformedError("the body is not a form")
        if (decoded := unquote_to_bytes(name)) in parameters:
            raise MalformedError("the form has a parameter twice")
        parameters[decoded] = unquote_to_bytes(value)
    return parameters


def _signed_pairs(parameters: Parameters) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield what may have been signed: by the rules of payments, then of other messages."""
    pairs = sorted(pair for pair in parameters.items() if pair[0] != b"sign")
    without_type = [pair for pair in pairs if pair[0] != b"sign_type"]
    for rule in (without_type, pairs):
        with_values = [pair for pair in rule if pair[1]]
        yield with_values
        if len(with_values) < len(rule):
            yield rule


def _is_ambiguous(signed: bytes, pairs: list[tuple[bytes, bytes]]) -> bool:
    """Whether a name that counts appears in the signed content outside of its own parameter."""
    apparent = [part.partition(b"=")[0] for part in signed.split(b"&")]
    actual = [name for name, _ in pairs]
    return any(apparent.count(name) != actual.count(name) for name in COUNTS)


def _parse_notification(delivery: contract.Delivery) -> AlipayNotification:
    """Raises MalformedError."""
    parameters = delivery.parse_once(_parse_parameters)
    charset = _text(parameters, b"charset") or "utf-8"
    if charset.lower() not in CHARSETS:
        raise MalformedError("charset is not one of Alipay's")
    kind, notify_id = _kind(parameters), _require_text(parameters, b"notify_id")
    if not _WORD.fullmatch(kind):
        raise MalformedError("notify_type is missing or not in Alipay's format")
    if kind == TRADE:
        return _parse_trade(parameters, notify_id, delivery.dropped)
    at = _time(parameters, b"notify_time")
    return AlipayNotification(EventFields(kind.decode(), None, notify_id, occurred_at=at))


def _kind(parameters: Parameters) -> bytes:
    """Return what the notification is about; one of a payment may leave that out."""
    for name in (b"notify_type", b"msg_method", b"method"):
        if parameters.get(name):
            return parameters[name]
    return TRADE if parameters.get(b"trade_status") else b""


def _parse_trade(parameters: Parameters, notify_id: str, dropped: list[str]) -> AlipayNotification:
    status = _require_text(parameters, b"trade_status")
    notify_time, refunded_at = _time(parameters, b"notify_time"), _time(parameters, b"gmt_refund")
    refund_fee = _text(parameters, b"refund_fee", _AMOUNT)
    if notify_time is None or (refunded_at and refund_fee is None):
        missing = "notify_time" if notify_time is None else "refund_fee"
        raise MalformedError(f"{missing} is missing")
    paid_at = _time_or_drop(parameters, dropped, b"gmt_payment")
    closed_at = _time_or_drop(parameters, dropped, b"gmt_close")
    fields = EventFields(
        type=status,
        payment_id=_require_text(parameters, b"trade_no"),
        event_id=notify_id,
        order=_text(parameters, b"out_trade_no"),
        amount=_text(parameters, b"total_amount", _AMOUNT),
        currency=(_text(parameters, b"trans_currency") or "CNY").upper(),
        occurred_at=refunded_at or closed_at or paid_at or notify_time,
    )
    refunded = None if refund_fee is None else fields._replace(amount=refund_fee).money()
    if refunded is None or refunded.amount_minor == 0:
        return AlipayNotification(fields, status, None, paid_at)
    return AlipayNotification(fields._replace(type=f"{status}.refund"), status, refunded, paid_at)


def _require_text(parameters: Parameters, name: bytes) -> str:
    text = _text(parameters, name)
    if text is None:
        raise MalformedError(f"{name.decode()} is missing")
    return text


def _text(parameters: Parameters, name: bytes, form: re.Pattern[bytes] = _WORD) -> str | None:
    """Return an ASCII field of this form, None if it is empty."""
    value = parameters.get(name)
    if not value:
        return None
    if not form.fullmatch(value):
        raise MalformedError(f"{name.decode()} is not in Alipay's format")
    return value.decode("ascii")


def _time_or_drop(parameters: Parameters, dropped: list[str], name: bytes) -> datetime | None:
    """Return a time without which the event counts, too."""
    try:
        return _time(parameters, name)
    except MalformedError:
        dropped.append(name.decode())
        return None


def _time(parameters: Parameters, name: bytes) -> datetime | None:
    """Return a time such as 2019-08-15 15:56:25, which is China's, in UTC."""
    value = _text(parameters, name, _TIME)
    try:
        local = None if value is None else datetime.fromisoformat(value)
        return None if local is None else to_utc(local.replace(tzinfo=CHINA))
    except ValueError:
        raise MalformedError(f"{name.decode()} is not a time") from None
