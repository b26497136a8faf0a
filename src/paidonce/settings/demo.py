"""A demo source, plan and user, for a start without a configuration."""

from pathlib import Path
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.settings import Settings
from paidonce.settings.reading import config_path, load_settings
from paidonce.settings.secrets import kept_secret
from paidonce.settings.sections import PlanSettings, SourceSettings

SOURCE: Final = "demo"
EMAIL: Final = "demo@example.com"
PRICE: Final = "990.00"
CURRENCY: Final = "RUB"


def settings_or_demo(config: Path | None = None, **flags: object) -> tuple[Settings, bool]:
    """The settings, and whether they are the demo's: no file and no sources.

    Raises ConfigurationError, also if a production environment has no sources.
    """
    settings = load_settings(config, **flags)
    if settings.sources:
        return settings, False
    if config_path(config) is not None or settings.environment == "production":
        raise ConfigurationError(
            "sources: there are none; add one, such as [sources.payments] with "
            'provider = "tilda" and secrets = ["env:TILDA_SECRET"]'
        )
    folder = settings.database.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"database.data_dir = '{folder}': {error}") from None
    secret = kept_secret(folder / "demo-secret", "database.data_dir")
    source = SourceSettings(provider="tilda", secrets=(secret,))
    plan = PlanSettings(price=PRICE, currency=CURRENCY, days=30, default=True)
    plans = settings.plans or {"monthly": plan}
    return settings.model_copy(update={"sources": {SOURCE: source}, "plans": plans}), True
