"""A demo source, plan and user, for a start without a configuration."""

import os
import secrets
from pathlib import Path
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.settings import PlanSettings, Settings, SourceSettings
from paidonce.settings.reading import config_path, load_settings

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
    source = SourceSettings(provider="tilda", secrets=(_secret(settings.database.data_dir),))
    plan = PlanSettings(price=PRICE, currency=CURRENCY, days=30, default=True)
    plans = settings.plans or {"monthly": plan}
    return settings.model_copy(update={"sources": {SOURCE: source}, "plans": plans}), True


def _secret(data_dir: Path) -> str:
    """The secret of the demo source, created once."""
    path = data_dir / "demo-secret"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"database.data_dir = '{data_dir}': {error}") from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(secret := secrets.token_hex(24))
    return secret
