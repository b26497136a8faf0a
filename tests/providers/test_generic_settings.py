"""Wrong settings of `generic` sources, and those in the documentation."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from paidonce.core.events import EventType, PaymentEvent
from paidonce.errors import ConfigurationError
from paidonce.providers import load_providers
from paidonce.providers.contract import Delivery, ProviderConfig
from paidonce.providers.generic import provider as generic
from paidonce.settings.reading import load_settings
from tests.providers.cases.generic import PAGE, ed25519, pem
from tests.providers.conformance import JSON, KEY, RECEIVED_AT

SECRET: Final = "a secret of the shop's own"
FIELDS: Final = {
    "type": "/type",
    "payment_id": "/payment",
    "amount": "/amount",
    "currency": "/currency",
}
USUAL: Final[dict[str, Any]] = {
    "signature": {"header": "X-Signature"},
    "fields": FIELDS,
    "types": {"ok": "paid"},
}


def test_an_invalid_key_is_a_configuration_error() -> None:
    """USE-3 SEC-7: the error names the key and the remedy, and not what was given."""
    short = generate_private_key(65537, 1024)
    private = (
        ed25519("key").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    )
    for algorithm, secret, remedy in (
        ("ed25519", "junk!", "PEM"),
        ("ed25519", "AAAA", "PEM"),
        ("ed25519", pem(short), "PEM"),
        ("rsa-sha256", pem(ed25519("key")), "PEM"),
        ("rsa-sha256", pem(short), "2048"),
        ("ed25519", private, "public"),
        ("ed25519", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "PEM"),
    ):  # fmt: skip
        described = USUAL | {"signature": {"header": "X-Signature", "algorithm": algorithm}}
        with pytest.raises(ConfigurationError, match=r"sources\.test\.secrets\[0\]") as caught:
            generic.configure(ProviderConfig(KEY, (secret,), described))
        assert remedy in str(caught.value)
        assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("signature", "error"),
    [
        ({"header": None}, r"header.*X-Signature"),
        ({"header": ""}, r"header.*X-Signature"),
        ({"header": "X Signature"}, r"header = 'X Signature'.*X-Signature"),
        ({"algorithm": "md5"}, r"algorithm = 'md5'.*hmac-sha256.*rsa-sha256"),
        ({"encoding": "base32"}, r"encoding = 'base32'.*hex.*base64"),
        ({"prefix": 5}, r"prefix = 5.*text"),
        ({"signed": "{timestamp}"}, r"signed = '\{timestamp\}'.*\{body\}"),
        ({"signed": ""}, r"signed = ''.*\{body\}"),
        ({"signed": "{body}{body}"}, r"signed.*\{body\} once"),
        ({"signed": "{body}{nonce}"}, r"signed.*\{nonce\}.*\{timestamp\}"),
        ({"signed": "{body"}, r"signed = '\{body'"),
        ({"signed": "{body}}"}, r"signed.*brace"),
        ({"signed": ["{body}"]}, r"signed.*text"),
        ({"signed": "{timestamp}{body}"}, r"timestamp: is required"),
        ({"signed": "{id}{body}"}, r"id: is required"),
        ({"signed": "{url}{body}"}, r"url: is required"),
        ({"timestamp": "X-Time"}, r"timestamp = 'X-Time'.*\{timestamp\}.*signed"),
        ({"id": "X-Id"}, r"id = 'X-Id'.*\{id\}.*signed"),
        ({"url": "https://example.com"}, r"url = 'https://example\.com'.*\{url\}.*signed"),
        ({"signed": "{url}{body}", "url": "/webhooks"}, r"url = '/webhooks'.*whole address"),
        ({"signed": "{url}{body}", "url": " "}, r"url: is required"),
        ({"signed": "{id}{body}", "id": "X Id"}, r"id = 'X Id'"),
        ({"pairs": True}, r"value: is required"),
        ({"pairs": "yes"}, r"pairs = 'yes': write true or false"),
        ({"value": "h1"}, r"value = 'h1'.*pairs = true"),
        ({"signed": "{timestamp}{body}", "timestamp": "a b"}, r"timestamp = 'a b'.*X-Timestamp"),
        ({"signed": "{timestamp}{body}", "timestamp": 5}, r"timestamp: is required"),
        (
            {"signed": "{timestamp}{body}", "pairs": True, "value": "h1", "timestamp": 5},
            r"timestamp: is required, e.g. 'ts'",
        ),
        (
            {"signed": "{id}{timestamp}{body}", "id": "X-Id", "timestamp": "X-Time"},
            r"signed.*between",
        ),
        (
            {"signed": "{timestamp}00{id}{body}", "id": "X-Id", "timestamp": "X-T"},
            r"signed.*between",
        ),
        ({"tolerance": 5}, r"tolerance.*no such setting"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_signature_table_is_a_configuration_error(
    signature: dict[str, Any], error: str
) -> None:
    """USE-3: with the key, the value and the remedy."""
    described = {"header": "X-Signature"} | signature
    given = {name: one for name, one in described.items() if one is not None}
    with pytest.raises(ConfigurationError, match=r"^sources\.test\.signature\." + error):
        generic.configure(ProviderConfig(KEY, (SECRET,), USUAL | {"signature": given}))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"signature": None}, r"signature: is required.*header"),
        ({"signature": "x"}, r"signature: is required"),
        ({"types": {}}, r"types: is required"),
        ({"types": {"a": "ignored"}}, r"types: is required"),
        ({"types": {"a": "payed"}}, r"types\.a = 'payed': write one of paid"),
        ({"fields": {"type": "/t"}}, r"fields\.payment_id: is required"),
        ({"fields": {"payment_id": "/t"}}, r"fields\.type: is required"),
        ({"fields": {"type": "/t", "payment_id": "/p"}}, r"fields\.amount: is required"),
        (
            {"fields": {"type": "/t", "payment_id": "/p", "amount_minor": "/a"}},
            r"fields\.currency: is required",
        ),
        ({"fields": FIELDS | {"amount_minor": "/a"}}, r"fields\.amount_minor.*one of them"),
        (
            {"fields": FIELDS | {"refunded": "/a", "refunded_minor": "/b"}},
            r"fields\.refunded_minor.*one of them",
        ),
        ({"fields": FIELDS | {"mail": "/m"}}, r"fields\.mail = '/m'.*known are"),
        ({"fields": FIELDS | {"email": "m"}}, r"fields\.email = 'm'"),
        ({"fields": FIELDS | {"email": "header:a b"}}, r"fields\.email = 'header:a b'.*header"),
        ({"currency": "RUB"}, r"currency.*no such setting"),
    ],
    ids=str,
)
def test_a_wrong_event_description_is_a_configuration_error(
    change: dict[str, Any], error: str
) -> None:
    """USE-3"""
    config = {name: one for name, one in (USUAL | change).items() if one is not None}
    with pytest.raises(ConfigurationError, match=r"^sources\.test\." + error):
        generic.configure(ProviderConfig(KEY, (SECRET,), config))


def test_types_without_money_need_no_amount() -> None:
    """USE-3: a source that only tells of failures."""
    fields = {"type": "/type", "payment_id": "/payment"}
    described = USUAL | {"fields": fields, "types": {"no": "failed"}}
    provider = generic.configure(ProviderConfig(KEY, (SECRET,), described))
    event = provider.translate(Delivery(JSON, b'{"type":"no","payment":"p-1"}', RECEIVED_AT))
    assert isinstance(event, PaymentEvent)
    assert event.event_type is EventType.FAILED


def test_the_documented_settings_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-3 USE-6: from a file, with the secrets that they refer to."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    config = tmp_path / "paidonce.toml"
    config.write_text("\n".join(blocks))
    (tmp_path / "bank.pem").write_text(pem(ed25519("bank")))
    monkeypatch.chdir(tmp_path)
    for variable in set(re.findall(r"env:(\w+)", config.read_text())):
        monkeypatch.setenv(variable, SECRET)
    providers = load_providers(load_settings(config))
    assert sorted(providers) == ["bank", "hub", "paddle", "rzp", "square"]
    assert {one.name for one in providers.values()} == {"generic"}
