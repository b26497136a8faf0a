"""The registry of providers, and providers of other packages."""

from pathlib import Path

import pytest

from paidonce.errors import ConfigurationError
from paidonce.providers import REGISTRY, load_providers
from paidonce.providers.contract import Provider, ProviderConfig
from paidonce.providers.tilda.provider import Tilda
from paidonce.settings import Settings
from paidonce.settings.sections import SourceSettings

MODULE = """
from dataclasses import dataclass

@dataclass
class Acme:
    name = "acme"
    setup: object

def configure(setup):
    return Acme(setup)
"""


def configured(name: str, source: SourceSettings) -> Provider:
    return load_providers(Settings(sources={name: source}))[name]


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of somebody else's that brings a provider, as pip would leave it."""
    (tmp_path / "acme_paidonce.py").write_text(MODULE)
    info = tmp_path / "acme_paidonce-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-paidonce\nVersion: 1.0\n")
    points = "acme = acme_paidonce:configure\ntilda = acme_paidonce:configure\n"
    (info / "entry_points.txt").write_text(f"[paidonce.providers]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_registered_provider_is_found() -> None:
    """PRV-1"""
    provider = configured("shop", SourceSettings(provider="tilda", secrets=("secret",)))
    assert isinstance(provider, Tilda)
    assert provider.secrets == (b"secret",)


@pytest.mark.usefixtures("_installed")
def test_a_provider_of_another_package_is_loaded_by_its_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PRV-1 PRV-8: with secrets resolved, its own options, the key to name and the tolerance."""
    monkeypatch.setenv("ACME_SECRET", "resolved")
    source = SourceSettings.model_validate(
        {"provider": "acme", "secrets": ["env:ACME_SECRET"], "region": "eu", "tolerance_s": 60}
    )
    provider = configured("shop", source)
    assert provider.name == "acme"
    expected = ProviderConfig("sources.shop", ("resolved",), {"region": "eu"}, 60)
    assert vars(provider) == {"setup": expected}
    accepting = source.model_copy(update={"stale": "accept"})
    assert vars(configured("shop", accepting))["setup"].tolerance_s is None


@pytest.mark.usefixtures("_installed")
def test_another_package_cannot_replace_a_built_in_provider() -> None:
    """PRV-1"""
    provider = configured("shop", SourceSettings(provider="tilda", secrets=("secret",)))
    assert isinstance(provider, Tilda)


@pytest.mark.usefixtures("_installed")
def test_an_unknown_provider_is_rejected_with_the_known_names() -> None:
    """USE-3"""
    with pytest.raises(ConfigurationError) as caught:
        configured("shop", SourceSettings(provider="tida", secrets=("secret",)))
    message = str(caught.value)
    assert "sources.shop.provider" in message
    assert "'tida'" in message
    assert ", ".join(sorted({*REGISTRY, "acme"})) in message


STORES = {
    "none named": (None, None),
    "one named": ("store-1", None),
    "the other named": (None, "store-1"),
    "the same": ("store-1", "store-1"),
}


def korean(store_id: str | None, api_secret: str = "a secret of the API") -> SourceSettings:
    options = {"api_secret": api_secret} | ({"store_id": store_id} if store_id else {})
    return SourceSettings(provider="portone", secrets=("whsec_c2VjcmV0",), **options)


@pytest.mark.parametrize("stores", STORES.values(), ids=STORES)
def test_two_sources_with_the_same_payments_are_rejected(
    stores: tuple[str | None, str | None],
) -> None:
    """PRV-3 PRV-7: one api_secret shows both the same payments, unless each names its store."""
    one, other = stores
    sources = {"kr": korean(one), "seoul": korean(other)}
    with pytest.raises(ConfigurationError) as refused:
        load_providers(Settings(sources=sources))
    message = str(refused.value)
    assert "sources.kr.store_id" in message
    assert "sources.seoul.store_id" in message
    assert "a secret of the API" not in message


def test_two_stores_or_two_accounts_are_two_sources() -> None:
    """PRV-3"""
    stores = {"kr": korean("store-1"), "seoul": korean("store-2"), "busan": korean("store-3")}
    assert len(load_providers(Settings(sources=stores))) == 3
    accounts = {"kr": korean(None), "seoul": korean(None, "another secret")}
    assert len(load_providers(Settings(sources=accounts))) == 2
