"""Errors in the settings of channels, without their secrets."""

import os
from pathlib import Path
from typing import Final

import pytest

from paidonce.core.notifications import NotificationKind
from paidonce.errors import ConfigurationError
from paidonce.notifications.channels import Channel, load_channels, routes
from paidonce.settings.reading import load_settings

WRONG: Final = {
    'kind = "pager"': ["kind", "pager"],
    'kind = "webhook"\nurl = "https://a/b"': [".secret", "whsec_"],
    'kind = "webhook"\nurl = "ftp://hunter2"\nsecret = "whsec_aGk="': [".url", "https://"],
    'kind = "webhook"\nurl = "https://a"\nsecret = "hunter2!"': [".secret", "base64"],
    'kind = "webhook"\nurl = "https://a"\nsecret = "env:TEST_NOT_SET"': [".secret", "TEST_NOT_SET"],
    'kind = "slack"': [".url", "env:"],
    'kind = "slack"\nurl = "https://a"\nsecret = "hunter2"': [".secret", "slack"],
    'kind = "slack"\nurl = "https://a"\nabout = ["dead"]': [".about", "'dead'", "dead_letter"],
    'kind = "slack"\nurl = "https://a"\nabout = []': [".about", "dead_letter"],
    'kind = "slack"\nurl = "https://a"\nevery_s = 0': [".every_s", "0"],
    'kind = "slack"\nurl = "https://a"\nhunter2 = 1': ["no such setting"],
    'kind = "email"\nfrom = "a@b"\nto = ["c@d"]': [".smtp", "env:"],
    'kind = "email"\nsmtp = "smtp://me:hunter2/@x:1"\nfrom = "a@b"\nto = ["c@d"]': [".smtp", "%40"],
    'kind = "email"\nsmtp = "smtp://hunter2@x"\nfrom = "a@b"\nto = ["c@d"]': [".smtp", "neither"],
    'kind = "email"\nsmtp = "smtp://x"\nfrom = "a@b"': [".to", "ops@example.com"],
    'kind = "email"\nsmtp = "smtp://x"\nfrom = "me"\nto = ["c@d"]': [".from", "'me'"],
    'kind = "email"\nsmtp = "smtp://x"\nto = ["c@d"]': [".from", "ops@example.com"],
    'kind = "email"\nsmtp = 5\nfrom = "a@b"\nto = ["c@d"]': [".smtp", "(hidden)"],
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PAIDONCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("TEST_NOT_SET", raising=False)


def configured(folder: Path, text: str, name: str = "ops") -> dict[str, Channel]:
    file = folder / "some.toml"
    file.write_text(f"[notifications.{name}]\n{text}\n", encoding="utf-8")
    return load_channels(load_settings(file).notifications)


@pytest.mark.parametrize("text", WRONG)
def test_the_error_about_a_wrong_channel_names_its_key_and_a_hint(
    tmp_path: Path, text: str
) -> None:
    """OBS-5 USE-3 SEC-7"""
    with pytest.raises(ConfigurationError, match=r"notifications\.ops") as caught:
        configured(tmp_path, text)
    told = str(caught.value)
    assert [word for word in WRONG[text] if word not in told] == [], told
    assert "hunter2!" not in told
    assert "me:hunter2" not in told
    assert "hunter2@" not in told


def test_channel_names_follow_the_rule_of_source_names(tmp_path: Path) -> None:
    """USE-3"""
    with pytest.raises(ConfigurationError, match="'Ops-1' cannot name a channel"):
        configured(tmp_path, 'kind = "slack"\nurl = "https://a"', "Ops-1")


def test_a_channel_gets_all_kinds_by_default(tmp_path: Path) -> None:
    """OBS-5"""
    slack = 'kind = "slack"\nurl = "https://a"\n'
    assert configured(tmp_path, slack)["ops"].about == frozenset(NotificationKind)
    some = configured(tmp_path, slack + 'about = ["ban", "conflict"]')
    assert routes(some) == {NotificationKind.CONFLICT: ("ops",), NotificationKind.BAN: ("ops",)}
    assert routes({}) == {}


def test_the_repr_of_a_channel_has_no_secrets(tmp_path: Path) -> None:
    """SEC-7"""
    post = 'kind = "email"\nsmtp = "smtps://me:hunter2@x"\nfrom = "A <a@b>"\nto = ["c@d"]'
    assert "hunter2" not in str(configured(tmp_path, post))
    hook = 'kind = "webhook"\nurl = "https://x/hunter2"\nsecret = "whsec_aHVudGVyMg=="'
    assert "hunter2" not in str(configured(tmp_path, hook))
