"""The gateways that Paidonce can read, by name."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from paidonce.errors import ConfigurationError
from paidonce.providers import tilda
from paidonce.providers.contract import Provider
from paidonce.settings import Settings, SourceSettings, resolve_secret

Configure = Callable[[Sequence[str], Mapping[str, Any], str], Provider]
"""Makes a provider from a source's secrets, its own options and the settings key to name."""

ENTRY_POINTS: Final = "paidonce.providers"

REGISTRY: Final[Mapping[str, Configure]] = {
    "tilda": tilda.configure,
}


def configured_providers(settings: Settings) -> dict[str, Provider]:
    """Every source's provider, by the source's name. Raises ConfigurationError."""
    return {name: _configured(name, source) for name, source in settings.sources.items()}


def _configured(name: str, source: SourceSettings) -> Provider:
    key = f"sources.{name}"
    configure = _find(source.provider, key)
    secrets = [
        resolve_secret(secret, f"{key}.secrets[{index}]")
        for index, secret in enumerate(source.secrets)
    ]
    return configure(secrets, source.options, key)


def _find(provider: str, key: str) -> Configure:
    if provider in REGISTRY:
        return REGISTRY[provider]
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if provider not in others:
        known = ", ".join(sorted({*REGISTRY, *others}))
        raise ConfigurationError(
            f"{key}.provider = {provider!r}: there is no such provider; known are {known}"
        )
    configure: Configure = others[provider].load()
    return configure
