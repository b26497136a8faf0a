"""One file, variables and flags; and errors that help without telling secrets."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paidonce.errors import ConfigurationError
from paidonce.settings import Settings
from paidonce.settings.reading import load_settings
from paidonce.settings.secrets import resolve_secret

SECRET = "hunter2-and-some-more"
Written = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the variables or the file of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("PAIDONCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        path = tmp_path / "some.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(config: Path | None = None, **flags: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, **flags)
    return str(caught.value)


def test_the_defaults_are_the_documented_ones() -> None:
    """Section 15"""
    settings = load_settings()
    assert settings.environment == "development"
    assert (settings.database.url, str(settings.database.data_dir)) == ("embedded", ".paidonce")
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert (settings.server.mode, settings.server.max_body_bytes) == ("inline", 262_144)
    retry = settings.retry
    assert (retry.attempts, retry.initial_s, retry.factor, retry.max_s) == (5, 1.0, 2.0, 60.0)
    kept = settings.retention
    assert (kept.payloads_days, kept.partition_action, kept.evidence_days) == (400, "drop", 30)
    assert (kept.audit_days, kept.outbox_days, kept.dedup_keys_days) == (400, 30, 0)
    assert (kept.nonces_days, kept.notifications_days, kept.archive_dir) == (30, 30, None)


def test_the_documented_example_is_read(written: Written) -> None:
    """Section 15"""
    settings = load_settings(
        written(
            """
            environment = "production"
            [database]
            url = "postgresql://user:password@host:5432/name"
            [sources.payments]
            provider = "tilda"
            secrets = ["env:TILDA_SECRET"]
            tolerance_s = 300
            link_by_email = true
            stale = "reject"
            allow = []
            [sources.kr]
            provider = "portone"
            version = "v2"
            api_secret = "env:PORTONE_API_SECRET"
            [plans.monthly]
            price = "990.00"
            currency = "RUB"
            days = 30
            default = true
            """
        )
    )
    assert settings.environment == "production"
    assert not settings.database.is_embedded
    assert settings.sources["payments"].secrets == ("env:TILDA_SECRET",)
    assert settings.sources["payments"].options == {}
    assert settings.sources["kr"].options["version"] == "v2"
    assert settings.plans["monthly"].default


def test_variables_overrule_the_file_and_flags_overrule_both(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USE-3"""
    config = written('[server]\nhost = "0.0.0.0"\nport = 1\nmode = "queued"\n')

    def server(**flags: object) -> tuple[str, int, str]:
        found = load_settings(config, **flags).server
        return found.host, found.port, found.mode

    assert server() == ("0.0.0.0", 1, "queued")
    monkeypatch.setenv("PAIDONCE_SERVER__PORT", "2")
    assert server() == ("0.0.0.0", 2, "queued")
    monkeypatch.setenv("PAIDONCE_SERVER__HOST", "::1")
    assert server(server={"port": 3}) == ("::1", 3, "queued")


def test_every_scalar_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-3"""
    for variable, value in {
        "PAIDONCE_ENVIRONMENT": "production",
        "PAIDONCE_DATABASE__URL": "postgresql://host/name",
        "PAIDONCE_SERVER__TRUSTED_PROXIES": '["10.0.0.0/8"]',
        "PAIDONCE_SOURCES__PAYMENTS__PROVIDER": "tilda",
        "PAIDONCE_SOURCES__PAYMENTS__SECRETS": '["env:X"]',
        "PAIDONCE_PLANS__MONTHLY__PRICE": "990.00",
        "PAIDONCE_PLANS__MONTHLY__CURRENCY": "RUB",
        "PAIDONCE_PLANS__MONTHLY__DAYS": "30",
        "PAIDONCE_RETRY__ATTEMPTS": "3",
    }.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert settings.environment == "production"
    assert settings.database.url == "postgresql://host/name"
    assert settings.server.trusted_proxies == ("10.0.0.0/8",)
    assert settings.sources["payments"].secrets == ("env:X",)
    assert settings.plans["monthly"].price == "990.00"
    assert settings.retry.attempts == 3


def test_the_file_is_the_flags_the_variables_or_the_one_that_is_here(
    written: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Section 15"""
    here = tmp_path / "paidonce.toml"
    here.write_text("[server]\nport = 1\n")
    named = tmp_path / "named.toml"
    named.write_text("[server]\nport = 2\n")
    assert load_settings().server.port == 1
    monkeypatch.setenv("PAIDONCE_CONFIG", str(named))
    assert load_settings().server.port == 2
    assert load_settings(written("[server]\nport = 3\n")).server.port == 3


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """USE-3"""
    assert "nowhere.toml" in refusal(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nport = 70000\n", ["server.port", "70000", "65535"]),
        ('[server]\nport = "web"\n', ["server.port", "'web'", "integer"]),
        ('[server]\nmode = "fast"\n', ["server.mode", "'fast'", "inline", "queued"]),
        ('environment = "test"\n', ["environment", "'test'", "production"]),
        ("[server]\nprot = 1\n", ["server.prot", "no such setting"]),
        ("[sever]\nport = 1\n", ["sever", "no such setting"]),
        ('[sources.a]\nprovider = "tilda"\nstale = "maybe"\n', ["sources.a.stale", "'maybe'"]),
        ("[sources.a]\ntolerance_s = 1\n", ["sources.a.provider", "needed"]),
        ("[retry]\nattempts = 0\n", ["retry.attempts", "0"]),
        ('[plans.m]\nprice = "1"\ncurrency = "RUB"\n', ["plans.m", "days or months"]),
        (
            '[plans.m]\nprice = "1"\ncurrency = "RUB"\ndays = 1\nmonths = 1\n',
            ["plans.m", "days or months"],
        ),
        ("[retention]\npayloads_days = 30\n", ["retention.payloads_days", "30", "31", "0"]),
        ("[retention]\npayloads_days = -1\n", ["retention.payloads_days", "-1"]),
        ("[retention]\ndedup_keys_days = -7\n", ["retention.dedup_keys_days", "-7"]),
        (
            '[retention]\npartition_action = "burn"\n',
            ["partition_action", "'burn'", "drop", "detach"],
        ),
        ("[server\n", ["some.toml", "line 1"]),
    ],
)
def test_an_error_names_the_key_the_value_and_the_remedy(
    written: Written, text: str, told: list[str]
) -> None:
    """USE-3"""
    message = refusal(written(text))
    for part in told:
        assert part in message


def test_a_variable_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-3"""
    monkeypatch.setenv("PAIDONCE_SERVER__PORT", "web")
    assert "server.port" in refusal()
    monkeypatch.setenv("PAIDONCE_SERVER__PORT", "1")
    monkeypatch.setenv("PAIDONCE_SOURCES__PAYMENTS__SECRETS", '["unfinished')
    message = refusal()
    assert "sources" in message.lower()


def test_what_a_variable_does_wrong_is_not_blamed_on_the_file(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USE-3"""
    monkeypatch.setenv("PAIDONCE_SOURCES", "{unfinished")
    assert "some.toml" not in refusal(written(""))


def test_two_default_plans_are_refused(written: Written) -> None:
    """FUL-1"""
    plan = '[plans.{}]\nprice = "1"\ncurrency = "RUB"\ndays = 1\ndefault = true\n'
    message = refusal(written(plan.format("b") + plan.format("a")))
    assert "a, b" in message


@pytest.mark.parametrize(
    "variable", ["PAIDONCE_SERVER_PORT", "PAIDONCE_SEVER__PORT", "PAIDONCE_", "PAIDONCE_PORT"]
)
def test_a_variable_that_sets_nothing_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USE-3: in silence the default would be used in its place."""
    monkeypatch.setenv(variable, SECRET)
    message = refusal()
    assert variable in message
    assert "PAIDONCE_SERVER" in message
    assert SECRET not in message


def test_a_misspelt_key_in_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-3"""
    monkeypatch.setenv("PAIDONCE_SERVER__PROT", "1")
    assert "server.prot" in refusal()


@pytest.mark.parametrize("name", ["a", "payments", "shop_2", "z9"])
def test_a_source_has_a_plain_name(written: Written, name: str) -> None:
    """Section 15"""
    settings = load_settings(written(f'[sources.{name}]\nprovider = "tilda"\n'))
    assert set(settings.sources) == {name}


@pytest.mark.parametrize(
    "name", ["health", "Shop", "2shop", "my-shop", "_a", "shop.eu", "", "é", "a\\n"]
)
def test_a_source_with_another_name_is_refused(written: Written, name: str) -> None:
    """Section 15"""
    message = refusal(written(f'[sources."{name}"]\nprovider = "tilda"\n'))
    assert "cannot name a source" in message


@pytest.mark.parametrize(
    "text",
    [
        f'[sources.Bad]\nprovider = "tilda"\nsecrets = ["{SECRET}"]\n',
        f'[sources.a]\nprovider = "tilda"\nsecrets = "{SECRET}"\n',
        f'[sources.a]\nprovider = "tilda"\nsecrets = [["{SECRET}"]]\n',
        f'[sources.a]\nsecrets = ["{SECRET}"]\n',
        f'[sources.a]\nprovider = "tilda"\napi_secret = "{SECRET}"\nstale = "x"\n',
        f'[sources]\na = "{SECRET}"\n',
        f'sources = ["{SECRET}"]\n',
        f'database = "postgresql://user:{SECRET}@host/name"\n',
        f'[database]\nurl = ["postgresql://user:{SECRET}@host/name"]\n',
        f'[database]\npassword = "{SECRET}"\n',
        f'[sources.a]\nprovider = "tilda"\nsecrets = ["{SECRET}]\n',
    ],
    ids=[
        "beside a bad name", "not a list", "list in list", "without provider", "beside a bad value",
        "as a source", "as all sources", "as database", "in the url", "as an unknown key",
        "in broken TOML",
    ],
)  # fmt: skip
def test_an_error_never_shows_a_secret(written: Written, text: str) -> None:
    """SEC-7 USE-3"""
    assert SECRET not in refusal(written(text))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PAIDONCE_SOURCES", f'{{"a": {{"secrets": ["{SECRET}"'),
        ("PAIDONCE_SOURCES", f'{{"A": {{"provider": "tilda", "secrets": ["{SECRET}"]}}}}'),
        ("PAIDONCE_SOURCES__A__SECRETS", f'["{SECRET}"'),
        ("PAIDONCE_DATABASE", f"postgresql://user:{SECRET}@host"),
    ],
)
def test_an_error_never_shows_a_secret_of_a_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-7 USE-3"""
    monkeypatch.setenv(variable, value)
    assert SECRET not in refusal()


def test_a_secret_may_be_a_variable_a_file_or_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-7 section 15"""
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    assert resolve_secret("env:SHOP_SECRET", "key") == SECRET
    assert resolve_secret(f"file:{tmp_path / 'secret'}", "key") == SECRET
    assert resolve_secret(SECRET, "key") == SECRET
    assert resolve_secret("whsec_a:b", "key") == "whsec_a:b"


@pytest.mark.parametrize("empty", ["", " ", "\n", "\t \n"])
def test_an_empty_secret_is_refused_wherever_it_comes_from(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRV-7: an empty secret would be an open door."""
    monkeypatch.setenv("SHOP_SECRET", empty)
    (tmp_path / "secret").write_text(empty)
    for reference in ("env:SHOP_SECRET", f"file:{tmp_path / 'secret'}", empty):
        with pytest.raises(ConfigurationError, match=r"sources\.shop\.secrets\[0\]"):
            resolve_secret(reference, "sources.shop.secrets[0]")


@pytest.mark.parametrize(
    "reference", ["env:NO_SUCH_VARIABLE", "env:", "file:nowhere", "file:", "file:."]
)
def test_a_secret_that_is_not_there_is_refused(reference: str) -> None:
    """PRV-7"""
    with pytest.raises(ConfigurationError, match="some_key") as caught:
        resolve_secret(reference, "some_key")
    name = reference.partition(":")[2]
    assert name in str(caught.value)


def test_a_secret_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """PRV-7"""
    (tmp_path / "secret").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="some_key"):
        resolve_secret(f"file:{tmp_path / 'secret'}", "some_key")


def test_settings_cannot_be_changed_after_they_were_read() -> None:
    """USE-3"""
    settings: Settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.environment = "production"  # type: ignore[misc]


def test_rate_limits_are_read_in_the_form_that_is_promised(tmp_path: Path) -> None:
    """SEC-1 USE-3"""
    file = tmp_path / "limits.toml"
    file.write_text('[limits]\nunverified = "60/minute"\nper_address = ""\n')
    limits = load_settings(file).limits
    assert (limits.unverified, limits.per_address) == ("60/minute", "")
    assert (limits.verified_senders, limits.api_keys) == ("1200/minute", "30/minute")
    file.write_text('[limits]\nper_source = "often"\n')
    with pytest.raises(ConfigurationError, match=r"limits\.per_source = 'often'.*120/minute"):
        load_settings(file)
    file.write_text('[limits]\nstorage = "memcached://user:told@host"\n')
    with pytest.raises(ConfigurationError, match=r"limits\.storage = \(hidden\): give such as"):
        load_settings(file)


def test_a_ban_cannot_be_longer_than_the_longest(tmp_path: Path) -> None:
    """SEC-4 USE-3"""
    file = tmp_path / "security.toml"
    file.write_text("[security]\nban_minutes = 60\nlongest_ban_minutes = 30\n")
    with pytest.raises(ConfigurationError, match="longest_ban_minutes: give at least ban_minutes"):
        load_settings(file)


def test_whoever_archives_says_where(written: Written) -> None:
    """USE-3 INB-4"""
    told = refusal(written('[retention]\npartition_action = "archive"\n'))
    assert told.startswith("retention")
    assert "archive_dir" in told
    settings = load_settings(
        written('[retention]\npartition_action = "archive"\narchive_dir = "a"\n')
    )
    assert settings.retention.archive_dir == Path("a")
