"""Alipay's asynchronous notifications: forms, signed with RSA2 (SHA256withRSA, PKCS#1 v1.5).

Signed is not the form but the string `name=value&…` of its parameters, URL-decoded once and sorted
by name, without `sign`. Payments leave out `sign_type` too; messages of other products keep it.
Parameters without a value are left out or not, depending on the product: what the signature fits
decides. All of this is done on bytes, whatever the charset (UTF-8 or one of the GB family); what is
read are ASCII fields, whose bytes are the same in each.

The string is ambiguous, because its values are not escaped: whoever can have `&out_trade_no=…`
written into a text that Alipay signs could send the same string cut into other parameters. A
delivery is refused when a name that counts stands anywhere in the string but at its own parameter.

`notify_id` stays the same when a notification is sent again, with a new time and signature: it is
the key. `refund_fee` is all that was refunded so far. Times are China's. An answer of exactly
`success` ends the retries; everything else is sent again for a day.

https://opendocs.alipay.com/open/270/105902 and the official SDKs, checked on 2026-11-16.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.errors import (
    ConfigurationError,
    InvalidSignatureError,
    MalformedError,
)
from paidonce.providers.alipay_samples import CHINA, SampleKey, notification
from paidonce.providers.contract import Delivery, Identity, Provider, Sample, Setup, fingerprint
from paidonce.providers.fields import Said, canonical, exact_money, identity
from paidonce.providers.signing import refuse_stale

CONTENT_TYPE: Final = "application/x-www-form-urlencoded"
MAX_PARAMETERS: Final = 500
SMALLEST_KEY_BITS: Final = 2048
CHARSETS: Final = frozenset({"utf-8", "gbk", "gb2312", "gb18030"})

TRADE: Final = b"trade_status_sync"
MONEY_MOVED: Final = frozenset({"TRADE_SUCCESS", "TRADE_FINISHED", "TRADE_CLOSED"})

COUNTS: Final = frozenset(
    b"app_id charset gmt_close gmt_payment gmt_refund method msg_method notify_id notify_time "
    b"notify_type out_trade_no refund_fee seller_id sign sign_type total_amount trade_no "
    b"trade_status trans_currency".split()
)
"""The names of parameters that are read here, so that no text may pretend to be one of them."""

_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_WORD: Final = re.compile(rb"[!-%'-<>-~]{1,128}")  # printable, without & and =
_AMOUNT: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,3})?")
_TIME: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")
_KEPT: Final = ("content-type", "user-agent")
_NO_TRADE: Final = Ignored(Code.NON_SUCCESS_STATUS, "the notification concerns no payment")
_OTHER_STATUS: Final = Ignored(Code.NON_SUCCESS_STATUS, "the trade's status is none that counts")

Parameters = Mapping[bytes, bytes]


class Notice(NamedTuple):
    """What a notification says; one that concerns no trade has no status."""

    said: Said
    status: str | None = None
    refunded: Money | None = None  # in all, so far
    paid_at: datetime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Alipay(Provider):
    """A source that receives the notifications of one app and seller."""

    name: ClassVar = "alipay"
    content_types: ClassVar = frozenset({CONTENT_TYPE})
    composes_for_itself: ClassVar = True

    public_keys: tuple[RSAPublicKey, ...]
    addressees: Mapping[bytes, bytes]
    tolerance_s: int | None
    sample_key: SampleKey | None = field(default=None, repr=False)
    """What signs test webhooks; there is none in production."""

    def verify(self, delivery: Delivery) -> None:
        try:
            parameters = delivery.read(_parameters)
        except MalformedError as error:
            raise InvalidSignatureError(str(error)) from None
        self._check_signature(parameters)
        self._check_addressees(parameters)
        self._check_time(parameters, delivery.received_at)

    def identify(self, delivery: Delivery) -> Identity:
        said, status, refunded, _ = delivery.read(_notice)
        digest = fingerprint(
            said.payment_id, said.order, status, canonical(said.amount), said.currency, refunded
        )
        assert said.event_id is not None
        return identity(said, said.event_id, digest)

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        notice = delivery.read(_notice)
        if notice.status is None:
            return _NO_TRADE
        says = _says(notice)
        return _OTHER_STATUS if says is None else _event(notice, says)

    def signature_method(self, delivery: Delivery) -> str:
        return "rsa2"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: headers[name] for name in _KEPT if name in headers}

    def acknowledge(self, status: str, event_id: UUID, delivery: Delivery) -> tuple[str, bytes]:
        return "text/plain", b"success"

    def refuse(self, code: str, detail: str) -> tuple[str, bytes]:
        return "text/plain", b"fail"

    def usual_currency(self) -> str:
        return "CNY"

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        if self.sample_key is None:
            raise ConfigurationError("a public key signs nothing: no test webhook can be made")
        app_id, seller_id = (self.addressees[name].decode() for name in (b"app_id", b"seller_id"))
        return {"content-type": CONTENT_TYPE}, notification(
            sample, app_id, seller_id, self.sample_key
        )

    def _check_signature(self, parameters: Parameters) -> None:
        signature = _exact_base64(parameters.get(b"sign", b""))
        if signature is None or parameters.get(b"sign_type") != b"RSA2":
            raise InvalidSignatureError("there is no signature of type RSA2")
        for pairs in _signed_pairs(parameters):
            signed = b"&".join(b"%b=%b" % pair for pair in pairs)
            if any(_verifies(key, signature, signed) for key in self._trusted_keys()):
                if _is_ambiguous(signed, pairs):
                    raise InvalidSignatureError("what is signed can be read in two ways")
                return
        raise InvalidSignatureError("the signature does not match the parameters")

    def _trusted_keys(self) -> tuple[RSAPublicKey, ...]:
        return self.public_keys + (self.sample_key.public_keys if self.sample_key else ())

    def _check_addressees(self, parameters: Parameters) -> None:
        """Others' notifications count for nothing; only those of payments have to name both."""
        for name, wanted in self.addressees.items():
            given = parameters.get(name, b"")
            if given != wanted and (given or _kind(parameters) == TRADE):
                raise InvalidSignatureError(f"its {name.decode()} is not that of this source")

    def _check_time(self, parameters: Parameters, received_at: datetime) -> None:
        try:
            sent_at = _time(parameters, b"notify_time")
        except MalformedError:
            return  # it is authentic, and refused when it is read
        if sent_at is not None:
            refuse_stale(sent_at.timestamp(), received_at, self.tolerance_s)


def configure(setup: Setup) -> Alipay:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"public_keys", "app_id", "seller_id"})
    if setup.secrets:
        raise ConfigurationError(f"{setup.key}.secrets: Alipay shares none; give public_keys")
    keys = setup.needed_secret_texts("public_keys", '["file:alipay.pem"]')
    addressees = {
        b"app_id": setup.needed_text("app_id", "2021000000000000").encode(),
        b"seller_id": setup.needed_text("seller_id", "2088000000000000").encode(),
    }
    public_keys = [
        _public_key(text.strip(), f"{setup.key}.public_keys[{index}]")
        for index, text in enumerate(keys)
    ]
    sample_key = SampleKey() if setup.accepts_test else None
    return Alipay(tuple(public_keys), addressees, setup.tolerance_s, sample_key)


def _parameters(delivery: Delivery) -> Parameters:
    """The form's parameters, decoded once, to bytes. Raises MalformedError."""
    pairs = delivery.body.split(b"&", MAX_PARAMETERS)
    if len(pairs) > MAX_PARAMETERS:
        raise MalformedError(f"the form has over {MAX_PARAMETERS} parameters")
    parameters: dict[bytes, bytes] = {}
    for pair in pairs:
        name, equals, value = pair.partition(b"=")
        if not equals or _ESCAPE.search(pair):
            raise MalformedError("the body is not a form")
        if (decoded := _decoded(name)) in parameters:
            raise MalformedError("the form has a parameter twice")
        parameters[decoded] = _decoded(value)
    return parameters


def _decoded(part: bytes) -> bytes:
    return unquote_to_bytes(part.replace(b"+", b" "))


def _signed_pairs(parameters: Parameters) -> Iterator[list[tuple[bytes, bytes]]]:
    """What may have been signed: as payments do it, and then as other messages do."""
    pairs = sorted(pair for pair in parameters.items() if pair[0] != b"sign")
    without_type = [pair for pair in pairs if pair[0] != b"sign_type"]
    for rule in (without_type, pairs):
        with_values = [pair for pair in rule if pair[1]]
        yield with_values
        if len(with_values) < len(rule):
            yield rule


def _is_ambiguous(signed: bytes, pairs: list[tuple[bytes, bytes]]) -> bool:
    """Whether a name that counts stands elsewhere in what is signed than at its own parameter."""
    apparent = [part.partition(b"=")[0] for part in signed.split(b"&")]
    actual = [name for name, _ in pairs]
    return any(apparent.count(name) != actual.count(name) for name in COUNTS)


def _verifies(key: RSAPublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _exact_base64(text: bytes) -> bytes | None:
    """The bytes, if this is the one way to write them."""
    try:
        value = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return value if value and base64.b64encode(value) == text else None


def _notice(delivery: Delivery) -> Notice:
    """Raises MalformedError."""
    parameters = delivery.read(_parameters)
    charset = _word(parameters, b"charset") or "utf-8"
    if charset.lower() not in CHARSETS:
        raise MalformedError("charset is none of Alipay's")
    kind, notify_id = _kind(parameters), _needed(parameters, b"notify_id")
    if not _WORD.fullmatch(kind):
        raise MalformedError("notify_type is missing, or not as Alipay writes it")
    if kind == TRADE:
        return _trade(parameters, notify_id)
    at = _time(parameters, b"notify_time")
    return Notice(Said(kind.decode(), payment_id=None, event_id=notify_id, occurred_at=at))


def _kind(parameters: Parameters) -> bytes:
    """What the notification is about; that of a payment may go without saying."""
    for name in (b"notify_type", b"msg_method", b"method"):
        if parameters.get(name):
            return parameters[name]
    return TRADE if parameters.get(b"trade_status") else b""


def _trade(parameters: Parameters, notify_id: str) -> Notice:
    status, notify_time = _needed(parameters, b"trade_status"), _time(parameters, b"notify_time")
    refunded_at, refund_fee = _time(parameters, b"gmt_refund"), _amount(parameters, b"refund_fee")
    if notify_time is None or (refunded_at and refund_fee is None):
        missing = "notify_time" if notify_time is None else "refund_fee"
        raise MalformedError(f"{missing} is missing")
    paid_at, closed_at = _time(parameters, b"gmt_payment"), _time(parameters, b"gmt_close")
    said = Said(
        type=status,
        payment_id=_needed(parameters, b"trade_no"),
        event_id=notify_id,
        order=_word(parameters, b"out_trade_no"),
        amount=_amount(parameters, b"total_amount"),
        currency=(_word(parameters, b"trans_currency") or "CNY").upper(),
        occurred_at=refunded_at or closed_at or paid_at or notify_time,
    )
    refunded = _refunded(said, refund_fee)
    kind = f"{status}.refund" if refunded else status
    return Notice(said._replace(type=kind), status, refunded, paid_at)


def _refunded(said: Said, refund_fee: str | None) -> Money | None:
    """What was returned, if anything was."""
    if refund_fee is None:
        return None
    refunded = exact_money(said._replace(amount=refund_fee))
    return refunded if refunded.amount_minor else None


def _says(notice: Notice) -> Says | None:
    """A refund keeps the status of its trade, or closes it; a finished trade was paid for."""
    if notice.refunded is not None and notice.status in MONEY_MOVED:
        return Says.REFUNDED
    match notice.status:
        case "TRADE_SUCCESS" | "TRADE_FINISHED":
            return Says.PAID
        case "TRADE_CLOSED":
            return Says.VOIDED
        case "WAIT_BUYER_PAY":
            return Says.PENDING
        case _:
            return None


def _event(notice: Notice, says: Says) -> PaymentEvent:
    said, _, refunded, paid_at = notice
    assert said.payment_id is not None
    is_captured = says in (Says.PAID, Says.REFUNDED)
    return PaymentEvent(
        says,
        (ExternalId("payment", said.payment_id),),
        amount=exact_money(said) if is_captured else None,
        refunded=refunded if says is Says.REFUNDED else None,
        order=said.order,
        occurred_at=said.occurred_at,
        paid_at=paid_at if is_captured else None,
    )


def _needed(parameters: Parameters, name: bytes) -> str:
    word = _word(parameters, name)
    if word is None:
        raise MalformedError(f"{name.decode()} is missing")
    return word


def _word(parameters: Parameters, name: bytes) -> str | None:
    return _text(parameters, name, _WORD)


def _amount(parameters: Parameters, name: bytes) -> str | None:
    return _text(parameters, name, _AMOUNT)


def _text(parameters: Parameters, name: bytes, form: re.Pattern[bytes]) -> str | None:
    """An ASCII field of this form; an empty one is missing."""
    value = parameters.get(name)
    if not value:
        return None
    if not form.fullmatch(value):
        raise MalformedError(f"{name.decode()} is not as Alipay writes it")
    return value.decode("ascii")


def _time(parameters: Parameters, name: bytes) -> datetime | None:
    """A time of China's, such as 2019-08-15 15:56:25, in UTC."""
    said = _text(parameters, name, _TIME)
    try:
        local = None if said is None else datetime.fromisoformat(said)
        return None if local is None else local.replace(tzinfo=CHINA).astimezone(UTC)
    except (ValueError, OverflowError):
        raise MalformedError(f"{name.decode()} is not a time") from None


def _public_key(text: str, key: str) -> RSAPublicKey:
    """A key as Alipay gives it: PEM, base64 alone, or a certificate. Raises ConfigurationError."""
    if "PRIVATE KEY" in text:
        raise ConfigurationError(f"{key}: is a private key; give Alipay's public one")
    try:
        loaded = _loaded(text)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"{key}: is no key; give Alipay's public key, in PEM or base64, or its certificate"
        ) from None
    if not isinstance(loaded, RSAPublicKey) or loaded.key_size < SMALLEST_KEY_BITS:
        raise ConfigurationError(f"{key}: RSA2 needs an RSA key of {SMALLEST_KEY_BITS} bits")
    return loaded


def _loaded(text: str) -> object:
    if "BEGIN CERTIFICATE" in text:
        return x509.load_pem_x509_certificate(text.encode()).public_key()
    if "BEGIN" in text:
        return load_pem_public_key(text.encode())
    return load_der_public_key(base64.b64decode("".join(text.split()), validate=True))
