"""Errors about a wrong name say which one was probably meant."""

from pathlib import Path
from typing import Final

import pytest

from paidonce.errors import LONGEST_NAME, ConfigurationError, did_you_mean
from paidonce.notifications.channels import load_channels
from paidonce.providers import load_providers
from paidonce.settings.reading import load_settings
from tests.support.tools import paidonce

PLAN: Final = 'price = "1"\ncurrency = "EUR"\ndays = 1\n'
SOURCE: Final = '[sources.x]\nprovider = "tilda"\nsecrets = ["env:HOME"]\n'


@pytest.mark.parametrize(
    ("config", "meant"),
    [
        ('[souces.x]\nprovider = "tilda"', "sources"),
        ("[server]\nprot = 1", "port"),
        (f"[plans.monthly]\n{PLAN}defualt = true", "default"),
        ('[notifications.ops]\nkind = "slack"\nurll = "x"', "url"),
        ('[notifications.ops]\nkind = "email"\nfrm = "x"', "from"),
        ("[bus.topics]\npartitons = 3", "partitions"),
        ('[log]\nlevel = "warn"', "warning"),
        ('[log]\nformat = "consol"', "console"),
        (SOURCE.replace("tilda", "tlida"), "tilda"),
        (f"{SOURCE}curency = 1", "currency"),
        ('[notifications.ops]\nkind = "slack"\nurl = "http://x"\nabout = ["mismach"]', "mismatch"),
    ],
)
def test_a_wrong_setting_suggests_the_right_one(config: str, meant: str, tmp_path: Path) -> None:
    """USE-3"""
    (tmp_path / "paidonce.toml").write_text(config)
    with pytest.raises(ConfigurationError, match=f"; did you mean {meant}\\?$"):
        _load_all(tmp_path / "paidonce.toml")


def _load_all(path: Path) -> None:
    settings = load_settings(path)
    load_channels(settings.notifications)
    load_providers(settings)


def test_a_wrong_variable_suggests_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-3"""
    monkeypatch.setenv("PAIDONCE_SERVR__PORT", "1")
    with pytest.raises(ConfigurationError, match=r"; did you mean PAIDONCE_SERVER\?$"):
        load_settings()


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("serve", "--roles", "web,wrker"), "worker"),
        (("events", "list", "--status", "procesed"), "PROCESSED"),
        (("send", "--source", "dmo"), "demo"),
        (("evnts", "list"), "events"),
    ],
)
def test_a_wrong_value_of_an_option_suggests_the_right_one(
    arguments: tuple[str, ...], meant: str, tmp_path: Path
) -> None:
    """USE-2"""
    done = paidonce(tmp_path, *arguments)
    assert done.returncode == 2
    words = " ".join(done.stderr.replace("│", " ").split()).lower()
    assert "did you mean" in words
    assert meant.lower() in words.rpartition("did you mean")[2]


def test_nothing_is_suggested_for_a_name_that_is_like_none() -> None:
    """USE-3 SEC-8: and a long one is not compared as a whole."""
    assert did_you_mean("zzz", ["sources", "server"]) == ""
    assert did_you_mean("x" * LONGEST_NAME + "y" * 1_000_000, ["x" * LONGEST_NAME]) != ""
