"""The gateways that Paidonce can read, by name."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from paidonce.domain.masking import is_secret_name
from paidonce.errors import ConfigurationError
from paidonce.providers.contract import Provider, Setup
from paidonce.settings import Settings, SourceSettings, resolve_secret

Configure = Callable[[Setup], Provider]
"""Makes a provider from what a source's settings give it. Raises ConfigurationError."""

ENTRY_POINTS: Final = "paidonce.providers"

REGISTRY: Final = (
    "alipay",
    "creem",
    "generic",
    "portone",
    "standard",
    "stripe",
    "tilda",
)
"""Each is a module here, imported for the first source that names it: some bring much along."""


def configured_providers(settings: Settings) -> dict[str, Provider]:
    """Every source's provider, by the source's name. Raises ConfigurationError."""
    accepts_test = settings.environment != "production"
    providers = {
        name: _configured(name, source, accepts_test) for name, source in settings.sources.items()
    }
    if any(source.provider == "portone" for source in settings.sources.values()):
        from paidonce.providers.portone import refuse_shared_stores

        refuse_shared_stores(providers)
    return providers


def configured_secrets(settings: Settings) -> list[str]:
    """Every secret that a source has, by whatever setting. Raises ConfigurationError."""
    return [
        resolve_secret(value, f"sources.{name}.{key}")
        for name, source in settings.sources.items()
        for key, value in _secret_settings(source)
    ]


def _secret_settings(source: SourceSettings) -> Iterator[tuple[str, str]]:
    for index, secret in enumerate(source.secrets):
        yield f"secrets[{index}]", secret
    for option, value in source.options.items():
        if isinstance(value, str) and is_secret_name(option):
            yield option, value


def _configured(name: str, source: SourceSettings, accepts_test: bool) -> Provider:
    key = f"sources.{name}"
    configure = _find(source.provider, key)
    secrets = tuple(
        resolve_secret(secret, f"{key}.secrets[{index}]")
        for index, secret in enumerate(source.secrets)
    )
    tolerance_s = source.tolerance_s if source.stale == "reject" else None
    return configure(Setup(key, secrets, source.options, tolerance_s, accepts_test))


def _find(provider: str, key: str) -> Configure:
    if provider in REGISTRY:
        ours: Configure = import_module(f"{__name__}.{provider}").configure
        return ours
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if provider not in others:
        known = ", ".join(sorted({*REGISTRY, *others}))
        raise ConfigurationError(
            f"{key}.provider = {provider!r}: there is no such provider; known are {known}"
        )
    configure: Configure = others[provider].load()
    return configure
