"""Two sources that accept the same key are found, however each is written."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from paidonce.bootstrap.rules import check_settings
from paidonce.errors import ConfigurationError
from paidonce.providers import load_providers
from paidonce.providers.shared_keys import shared_keys
from paidonce.settings import Settings
from paidonce.settings.sections import SourceSettings

RAW = b"0123456789abcdefghijklmnopqrstuv"
TEXT = base64.b64encode(RAW).decode()
RSA_KEY = rsa.generate_private_key(65537, 2048).public_key()
PEM = RSA_KEY.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
DER = base64.b64encode(
    RSA_KEY.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
).decode()
ED_KEY = ed25519.Ed25519PrivateKey.generate().public_key()
ED_RAW = base64.b64encode(ED_KEY.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
ED_PEM = ED_KEY.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
FIELDS = {
    "fields": {"type": "/t", "payment_id": "/p", "amount": "/a", "currency": "/c"},
    "types": {"paid": "paid"},
}


def tilda(*secrets: str) -> SourceSettings:
    return SourceSettings(provider="tilda", secrets=secrets)


def standard(*secrets: str) -> SourceSettings:
    return SourceSettings(provider="standard", secrets=secrets)


def generic(secret: str, **signature: str) -> SourceSettings:
    options = {"signature": {"header": "x-signature", **signature}, **FIELDS}
    return SourceSettings(provider="generic", secrets=(secret,), **options)


def stripe(secret: str, **options: str) -> SourceSettings:
    return SourceSettings(provider="stripe", secrets=(secret,), **options)


def alipay(key: str, app_id: str = "1", seller_id: str = "2") -> SourceSettings:
    options = {"public_keys": [key], "app_id": app_id, "seller_id": seller_id}
    return SourceSettings(provider="alipay", **options)


def portone(secret: str, api_secret: str, **options: str) -> SourceSettings:
    return SourceSettings(provider="portone", secrets=(secret,), api_secret=api_secret, **options)


def found(first: SourceSettings, second: SourceSettings) -> list[str]:
    return shared_keys(load_providers(Settings(sources={"a": first, "b": second})))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(tilda("secret-one", "secret-two"), tilda("secret-two"), id="one of several"),
        pytest.param(standard(f"whsec_{TEXT}"), standard(TEXT), id="with and without prefix"),
        pytest.param(standard(f"whsec_{TEXT}"), generic(RAW.decode()), id="decoded and raw"),
        pytest.param(standard(f"whsec_{TEXT}"), tilda(TEXT), id="decoded and as text"),
        pytest.param(stripe(f"whsec_{TEXT}"), standard(f"whsec_{TEXT}"), id="as issued"),
        pytest.param(alipay(PEM), generic(DER, algorithm="rsa-sha256"), id="PEM and DER"),
        pytest.param(
            standard(f"whpk_{ED_RAW}"), generic(ED_PEM, algorithm="ed25519"), id="ed25519"
        ),
        pytest.param(alipay(PEM), alipay(DER), id="the same app and seller"),
        pytest.param(portone(TEXT, "one"), portone(TEXT, "two"), id="stores that are not named"),
        pytest.param(stripe("whsec_a"), stripe("whsec_a"), id="the same account"),
    ],
)
def test_a_key_that_two_sources_accept_is_found(
    first: SourceSettings, second: SourceSettings
) -> None:
    """SEC-10"""
    (told,) = found(first, second)
    assert "sources.a and sources.b" in told
    assert not [key for key in (TEXT, RAW.decode(), DER, "secret-two", ED_RAW) if key in told]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(tilda("secret-one"), tilda("secret-two"), id="other secrets"),
        pytest.param(alipay(PEM, app_id="1"), alipay(DER, app_id="3"), id="other apps"),
        pytest.param(
            portone(TEXT, "one", store_id="s1"), portone(TEXT, "one", store_id="s2"), id="stores"
        ),
        pytest.param(stripe("whsec_a"), stripe("whsec_a", account="acct_1"), id="other accounts"),
        pytest.param(
            generic("secret", signed="{url}{body}", url="https://shop.example/a"),
            generic("secret", signed="{url}{body}", url="https://shop.example/b"),
            id="signed addresses",
        ),
        pytest.param(tilda("secret-one"), standard(f"whsec_{TEXT}"), id="other providers"),
    ],
)
def test_sources_whose_deliveries_are_told_apart_may_share_a_key(
    first: SourceSettings, second: SourceSettings
) -> None:
    """SEC-10"""
    assert found(first, second) == []


def test_production_does_not_start_with_a_shared_secret_wherever_each_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-10"""
    (tmp_path / "secret").write_text("hidden-shared-secret\n", encoding="utf-8")
    monkeypatch.setenv("ONE_SECRET", "hidden-shared-secret")
    sources = {"a": tilda("env:ONE_SECRET"), "b": tilda(f"file:{tmp_path / 'secret'}")}
    check_settings(Settings(sources=sources))
    with pytest.raises(ConfigurationError) as refused:
        check_settings(Settings(environment="production", sources=sources))
    assert "sources.a and sources.b" in str(refused.value)
    assert "hidden-shared" not in str(refused.value)
