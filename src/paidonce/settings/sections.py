"""The sections of the settings, and their limits."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

LONGEST_RESERVATION_S: Final = 366 * 86_400
ANY_HOSTS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104
"""Every address of this machine."""
_RATE: Final = re.compile(r"[1-9][0-9]{0,8}/(second|minute|hour|day)")
_KAFKA_URL: Final = re.compile(r"kafka://[^\s,@/:]+:\d{1,5}(,[^\s,@/:]+:\d{1,5})*")
_SCHEMA_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_SOURCE_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _database_url(url: str) -> str:
    if url == "embedded":
        return url
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError('use "embedded" or postgresql://user:password@host:5432/name')
    try:
        urlsplit(url).port  # noqa: B018 - reading it is the check
    except ValueError:
        raise ValueError(
            "host and port cannot be read from it; use postgresql://user:password@host:5432/name, "
            "and write / as %2F, # as %23, @ as %40 in the password"
        ) from None
    return url


def _schema_name(name: str) -> str:
    if not _SCHEMA_NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise ValueError("use 1 to 48 of a-z, 0-9 and _, a letter first, not pg_")
    return name


class DatabaseSettings(_Section):
    """The database."""

    url: Annotated[str, AfterValidator(_database_url)] = "embedded"
    data_dir: Path = Path(".paidonce")
    chosen_schema: Annotated[str, AfterValidator(_schema_name)] | None = Field(None, alias="schema")

    @property
    def schema_name(self) -> str:
        """The schema of our tables: the embedded database is ours alone."""
        return self.chosen_schema or ("public" if self.is_embedded else "paidonce")

    @property
    def is_embedded(self) -> bool:
        return self.url == "embedded"


def _web_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or "@" in value or "?" in value or "#" in value:
        raise ValueError('give such as "https://gateway.example/v1"; the key has its own setting')
    return value


def _public_url(value: str) -> str:
    try:
        return _web_url(value)
    except ValueError:
        raise ValueError('give such as "https://pay.example.com"') from None


class ServerSettings(_Section):
    """The HTTP server."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65535)
    mode: Literal["inline", "queued"] = "inline"
    max_body_bytes: int = Field(262_144, ge=1, le=64 * 1024 * 1024)
    max_url_bytes: int = Field(8_192, ge=256, le=65_536)
    max_header_bytes: int = Field(16_384, ge=1_024, le=1024 * 1024)
    max_headers: int = Field(100, ge=16, le=10_000)
    request_timeout_s: float = Field(10.0, gt=0, le=300)
    max_connections: int = Field(2_048, ge=1, le=1_000_000)
    max_total_body_bytes: int = Field(64 * 1024 * 1024, ge=1)
    max_waiting: int = Field(4096, ge=1, le=1_000_000)
    trusted_proxies: tuple[str, ...] = ()
    public_url: Annotated[str, AfterValidator(_public_url)] | None = None
    admin_host: str = Field("127.0.0.1", min_length=1)
    admin_port: int | None = Field(None, ge=0, le=65535)
    metrics_token: str | None = None

    @model_validator(mode="after")
    def _has_two_ports(self) -> "ServerSettings":
        hosts = {self.host, self.admin_host}
        overlaps = len(hosts) == 1 or not hosts.isdisjoint(ANY_HOSTS)
        if self.admin_port == self.port != 0 and overlaps:
            raise ValueError(
                f"admin_port = {self.admin_port}: deliveries have this port; use another"
            )
        return self

    @model_validator(mode="after")
    def _has_room_for_one(self) -> "ServerSettings":
        if self.max_total_body_bytes < self.max_body_bytes:
            raise ValueError("max_total_body_bytes: give at least max_body_bytes")
        return self


class SourceSettings(BaseModel):
    """A configured instance of a provider. Other keys are options of the provider."""

    model_config = ConfigDict(frozen=True, extra="allow")

    provider: str
    secrets: tuple[str, ...] = ()
    tolerance_s: int = Field(300, ge=0)
    link_by_email: bool | None = None
    stale: Literal["reject", "accept"] = "reject"
    allow: tuple[str, ...] = ()
    lookup_rate: float = Field(10.0, gt=0, le=1_000)
    reconcile_every_h: float = Field(0.0, ge=0, le=8_760)
    reconcile_days: float = Field(3.0, gt=0, le=90)

    @property
    def options(self) -> Mapping[str, Any]:
        return self.model_extra or {}


class PlanSettings(_Section):
    """A plan: price in major units, duration in days or calendar months."""

    price: str
    currency: str
    days: int = Field(0, ge=0, le=36_500)
    months: int = Field(0, ge=0, le=1_200)
    product: str = Field("default", min_length=1, max_length=100)
    default: bool = False

    @model_validator(mode="after")
    def _lasts(self) -> "PlanSettings":
        if (self.days == 0) == (self.months == 0):
            raise ValueError("give either days or months")
        return self


class RetrySettings(_Section):
    """How transient failures are retried."""

    attempts: int = Field(5, ge=1, le=100)
    initial_s: float = Field(1.0, gt=0, le=3600)
    factor: float = Field(2.0, ge=1, le=100)
    max_s: float = Field(60.0, gt=0, le=86_400)
    handler_for_h: float = Field(72.0, gt=0, le=720)


class RefundSettings(_Section):
    """What a full refund takes back, by the kind of order."""

    order: Literal["reverse", "keep"] = "reverse"
    subscription: Literal["unused", "all", "keep"] = "unused"
    booking: Literal["reverse", "keep"] = "reverse"
    wallet: Literal["reverse", "keep"] = "reverse"

    @property
    def kept(self) -> list[str]:
        """The kinds whose effect is kept."""
        return [name for name in type(self).model_fields if getattr(self, name) == "keep"]


def _rate(value: str) -> str:
    if value and not _RATE.fullmatch(value):
        raise ValueError('give a number and a time, such as "120/minute", or "" for no limit')
    return value


def _storage(value: str) -> str:
    if value and not value.startswith(("redis://", "rediss://")):
        raise ValueError('give such as "redis://127.0.0.1:6379/0", or "" for memory')
    return value


class LimitsSettings(_Section):
    """Rate limits by address and by source, "" is no limit; and the room for evidence in a day."""

    unverified: Annotated[str, AfterValidator(_rate)] = "120/minute"
    verified_senders: Annotated[str, AfterValidator(_rate)] = "1200/minute"
    per_address: Annotated[str, AfterValidator(_rate)] = ""
    per_source: Annotated[str, AfterValidator(_rate)] = ""
    api_keys: Annotated[str, AfterValidator(_rate)] = "30/minute"
    storage: Annotated[str, AfterValidator(_storage)] = ""
    evidence_strangers_mb: int = Field(64, ge=0, le=1_000_000)
    evidence_senders_mb: int = Field(1_024, ge=0, le=1_000_000)


class SecuritySettings(_Section):
    """Bans, and the pepper of API keys."""

    ban_threshold: float = Field(200.0, ge=0, le=1_000_000)
    ban_half_life_minutes: float = Field(10.0, gt=0, le=100_000)
    ban_minutes: float = Field(10.0, gt=0, le=100_000)
    longest_ban_minutes: float = Field(1_440.0, gt=0, le=1_000_000)
    pepper: str | None = None

    @model_validator(mode="after")
    def _grows(self) -> "SecuritySettings":
        if self.longest_ban_minutes < self.ban_minutes:
            raise ValueError("longest_ban_minutes: give at least ban_minutes")
        return self


def _longer_than(shortest_days: int, why: str) -> AfterValidator:
    def check(days: int) -> int:
        if 0 < days < shortest_days:
            raise ValueError(f"{why}: give at least {shortest_days}, or 0 for ever")
        return days

    return AfterValidator(check)


_Days = Annotated[int, Field(ge=0, le=36_500)]
_WHOLE_MONTHS: Final = _longer_than(
    31, "whole months are removed, this one and the last are in use"
)
# A Kafka topic keeps messages for 7 days and one segment.
_LONGER_THAN_TOPICS: Final = _longer_than(
    8, "a message that is still in its topic would be consumed again"
)


class RetentionSettings(_Section):
    """How many days each kind of data is kept; 0 means for ever."""

    payloads_days: Annotated[_Days, _WHOLE_MONTHS] = 400
    partition_action: Literal["drop", "detach", "archive"] = "drop"
    archive_dir: Path | None = None
    evidence_days: _Days = 30
    audit_days: _Days = 400
    outbox_days: _Days = 30
    processed_events_days: Annotated[_Days, _LONGER_THAN_TOPICS] = 8
    dedup_keys_days: _Days = 0
    nonces_days: _Days = 30
    notifications_days: _Days = 30

    @model_validator(mode="after")
    def _archive_has_a_place(self) -> "RetentionSettings":
        if self.partition_action == "archive" and self.archive_dir is None:
            raise ValueError(
                'partition_action = "archive" needs archive_dir, a folder for the files'
            )
        return self


class NotificationSettings(_Section):
    """A channel for notifications. Which keys it needs depends on its kind."""

    kind: Literal["webhook", "email", "slack"]
    url: str | None = None
    secret: str | None = None
    smtp: str | None = None
    sender: str | None = Field(None, alias="from")
    to: tuple[str, ...] = ()
    about: tuple[str, ...] | None = None  # all
    every_s: float = Field(60.0, ge=1, le=86_400)


class WalletSettings(_Section):
    """The default expiry of reservations; 0 means never."""

    reservation_expires_s: int = Field(604_800, ge=0, le=LONGEST_RESERVATION_S)


def _bus_url(url: str) -> str:
    if url != "postgres" and not _KAFKA_URL.fullmatch(url):
        raise ValueError(
            'use "postgres", or kafka://host:9092, several with commas between them; '
            "users and passwords belong to [bus.kafka]"
        )
    return url


def _as_text(value: object) -> object:
    """As librdkafka expects it."""
    return str(value).lower() if isinstance(value, bool | int | float) else value


class TopicSettings(_Section):
    """How missing topics are created. -1 is the default of the broker."""

    prefix: str = Field("paidonce.", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    partitions: int = Field(6, ge=1, le=10_000)
    replication: int = Field(-1, ge=-1, le=100)


class BusSettings(_Section):
    """The bus: PostgreSQL, or Kafka and the options of its clients."""

    url: Annotated[str, AfterValidator(_bus_url)] = "postgres"
    topics: TopicSettings = TopicSettings()
    kafka: dict[str, Annotated[str, BeforeValidator(_as_text)]] = {}

    @property
    def is_kafka(self) -> bool:
        return self.url != "postgres"

    @property
    def kafka_servers(self) -> str:
        return self.url.removeprefix("kafka://")


class PayoutSettings(_Section):
    """The gateway of payouts; without it there are none."""

    gateway_url: Annotated[str, AfterValidator(_web_url)] | None = None
    gateway_key: str | None = None
    source: str | None = None
    timeout_s: float = Field(10.0, gt=0, le=300)
    max_calls: int = Field(16, ge=1, le=1_000)
    rate: float = Field(50.0, gt=0, le=10_000)
    first_pause_s: float = Field(1.0, gt=0, le=3_600)
    longest_pause_s: float = Field(300.0, gt=0, le=86_400)
    silent_after_s: float = Field(3_600.0, gt=0, le=30 * 86_400)
    pending_after_s: float = Field(86_400.0, gt=0, le=90 * 86_400)
    slow_pause_s: float = Field(3_600.0, gt=0, le=7 * 86_400)
    callback_attempts: int = Field(16, ge=1, le=100)

    @model_validator(mode="after")
    def _is_whole(self) -> "PayoutSettings":
        if (self.gateway_url is None) != (self.source is None):
            raise ValueError(
                "give gateway_url and source together: where payouts are carried out, and the "
                "source whose webhooks are its callbacks"
            )
        return self


def source_names(sources: dict[str, SourceSettings]) -> dict[str, SourceSettings]:
    for name in sources:
        if not _SOURCE_NAME.fullmatch(name) or name == "health":
            raise ValueError(
                f"{name!r} cannot name a source: use a-z, 0-9 and _, a letter first, not 'health'"
            )
    return sources


def channel_names(channels: dict[str, NotificationSettings]) -> dict[str, NotificationSettings]:
    for name in channels:
        if not _SOURCE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a channel: use a-z, 0-9 and _, a letter first")
    return channels


def one_default(plans: dict[str, PlanSettings]) -> dict[str, PlanSettings]:
    defaults = sorted(name for name, plan in plans.items() if plan.default)
    if len(defaults) > 1:
        raise ValueError(f"only one plan can be the default, but {', '.join(defaults)} are")
    return plans


class LogSettings(_Section):
    """The log on standard output. "auto" is for people on a terminal, and JSON elsewhere."""

    format: Literal["auto", "console", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class AlertSettings(_Section):
    """When people are notified of what waits."""

    unapplied_after_s: float = Field(900.0, ge=1, le=30 * 86_400)
