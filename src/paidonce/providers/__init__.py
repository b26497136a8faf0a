"""The registry of providers, and the providers of the configured sources."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from paidonce.core.masking import is_secret_name
from paidonce.errors import ConfigurationError, did_you_mean
from paidonce.providers.contract import Provider, ProviderConfig
from paidonce.settings import Settings
from paidonce.settings.secrets import resolve_secret
from paidonce.settings.sections import SourceSettings

Configure = Callable[[ProviderConfig], Provider]
"""Builds the provider of a source. Raises ConfigurationError."""

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
"""Each is a module here. It is imported when a source uses it, because some imports are slow."""


def load_providers(settings: Settings) -> dict[str, Provider]:
    """Build the provider of each source, by the source's name. Raises ConfigurationError."""
    accepts_test = settings.environment != "production"
    providers = {
        name: _load(name, source, accepts_test) for name, source in settings.sources.items()
    }
    if any(source.provider == "portone" for source in settings.sources.values()):
        from paidonce.providers.portone.v2 import reject_shared_stores

        reject_shared_stores(providers)
    return providers


def load_source_secrets(settings: Settings) -> list[str]:
    """Return every secret of every source, whatever its setting. Raises ConfigurationError."""
    return [
        resolve_secret(value, f"sources.{name}.{key}")
        for name, source in settings.sources.items()
        for key, value in _secret_settings(source)
    ]


def readable_source_secrets(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the secrets that can be read here, and the keys of those that cannot."""
    known, unknown = list[str](), list[str]()
    for name, source in settings.sources.items():
        for key, value in _secret_settings(source):
            try:
                known.append(resolve_secret(value, ""))
            except ConfigurationError:
                unknown.append(f"sources.{name}.{key}")
    return known, unknown


def _secret_settings(source: SourceSettings) -> Iterator[tuple[str, str]]:
    for index, secret in enumerate(source.secrets):
        yield f"secrets[{index}]", secret
    for option, value in source.options.items():
        if isinstance(value, str) and is_secret_name(option):
            yield option, value


def _load(name: str, source: SourceSettings, accepts_test: bool) -> Provider:
    key = f"sources.{name}"
    configure = _find(source.provider, key)
    secrets = tuple(
        resolve_secret(secret, f"{key}.secrets[{index}]")
        for index, secret in enumerate(source.secrets)
    )
    tolerance_s = source.tolerance_s if source.stale == "reject" else None
    return configure(ProviderConfig(key, secrets, source.options, tolerance_s, accepts_test))


def _find(provider: str, key: str) -> Configure:
    if provider in REGISTRY:
        builtin: Configure = import_module(f"{__name__}.{provider}").configure
        return builtin
    plugins = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if provider not in plugins:
        known = ", ".join(sorted({*REGISTRY, *plugins}))
        raise ConfigurationError(
            f"{key}.provider = {provider!r}: there is no such provider; known are {known}"
            f"{did_you_mean(provider, {*REGISTRY, *plugins})}"
        )
    configure: Configure = plugins[provider].load()
    return configure
