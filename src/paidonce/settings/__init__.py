"""All settings, read once: TOML file < PAIDONCE_* environment < command-line flags.

`load_settings` is the only way in. What is wrong is a ConfigurationError that names the key, the
bad value and the remedy.
"""

from paidonce.settings.reading import config_path, load_settings
from paidonce.settings.secrets import resolve_secret
from paidonce.settings.sections import (
    LONGEST_RESERVATION_S,
    METRICS_FOLDER,
    BusSettings,
    DatabaseSettings,
    LimitsSettings,
    NotificationSettings,
    PayoutSettings,
    PlanSettings,
    RetentionSettings,
    Role,
    SecuritySettings,
    ServerSettings,
    Settings,
    SourceSettings,
    WalletSettings,
)

__all__ = [
    "LONGEST_RESERVATION_S",
    "METRICS_FOLDER",
    "BusSettings",
    "DatabaseSettings",
    "LimitsSettings",
    "NotificationSettings",
    "PayoutSettings",
    "PlanSettings",
    "RetentionSettings",
    "Role",
    "SecuritySettings",
    "ServerSettings",
    "Settings",
    "SourceSettings",
    "WalletSettings",
    "config_path",
    "load_settings",
    "resolve_secret",
]
