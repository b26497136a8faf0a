"""All settings, read once: TOML file < PAIDONCE_* environment < command-line flags.

`reading.load_settings` is the only way in. What is wrong is a ConfigurationError that names the
key, the bad value and the remedy.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from paidonce.settings.sections import (
    AlertSettings,
    BusSettings,
    DatabaseSettings,
    LimitsSettings,
    LogSettings,
    NotificationSettings,
    PayoutSettings,
    PlanSettings,
    RefundSettings,
    RetentionSettings,
    RetrySettings,
    SecuritySettings,
    ServerSettings,
    SourceSettings,
    WalletSettings,
    channel_names,
    one_default,
    source_names,
)

LONGEST_HANDLER_S: Final = 25.0  # less than the idle timeout of transactions
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable with the folder in which processes that serve together keep their metrics.

The Prometheus library reads it on import: set it before `telemetry.metrics` is imported."""


class Role(StrEnum):
    """What a process does. Roles may be divided over processes."""

    WEB = "web"  # receives deliveries, answers operators
    WORKER = "worker"  # processes pending events
    RELAY = "relay"  # publishes outbox messages, sends notifications
    JANITOR = "janitor"  # maintains the tables
    PAYMENTS = "payments"  # carries out payouts, if a gateway is configured
    QUERY = "query"  # maintains the read model of payouts


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="PAIDONCE_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )
    toml_file: ClassVar[Path | None] = None

    environment: Literal["development", "production"] = "development"
    database: DatabaseSettings = DatabaseSettings()
    server: ServerSettings = ServerSettings()
    sources: Annotated[dict[str, SourceSettings], AfterValidator(source_names)] = {}
    plans: Annotated[dict[str, PlanSettings], AfterValidator(one_default)] = {}
    refunds: RefundSettings = RefundSettings()
    retry: RetrySettings = RetrySettings()
    limits: LimitsSettings = LimitsSettings()
    security: SecuritySettings = SecuritySettings()
    wallet: WalletSettings = WalletSettings()
    bus: BusSettings = BusSettings()
    payouts: PayoutSettings = PayoutSettings()
    notifications: Annotated[dict[str, NotificationSettings], AfterValidator(channel_names)] = {}
    alerts: AlertSettings = AlertSettings()
    log: LogSettings = LogSettings()
    retention: RetentionSettings = RetentionSettings()
    handlers: tuple[str, ...] = ()
    handler_timeout_s: float = Field(10.0, gt=0, le=LONGEST_HANDLER_S)
    handler_concurrency: int = Field(4, ge=1, le=64)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        if cls.toml_file is None:
            return init_settings, env_settings
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, cls.toml_file))
