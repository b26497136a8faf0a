"""What the settings say about Kafka, and what they may not say."""

import pytest

from paidonce.bus.kafka.options import kafka_options
from paidonce.errors import ConfigurationError
from paidonce.settings.sections import BusSettings

URL = "kafka://127.0.0.1:9092"


def test_options_that_guarantees_depend_on_cannot_be_set() -> None:
    """BUS-1 USE-3"""
    for name in ("acks", "enable.idempotence", "enable.auto.commit", "auto.offset.reset"):
        with pytest.raises(ConfigurationError, match=f"bus.kafka.{name}: cannot be set"):
            kafka_options(BusSettings(url=URL, kafka={name: "0"}))


def test_secrets_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-7"""
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    own = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "env:KAFKA_PASSWORD"}
    options = kafka_options(BusSettings(url=URL, kafka=own))
    assert options.producer()["sasl.password"] == "hush"
    assert options.consumer("payments")["group.id"] == "paidonce.payments"
    assert "hush" not in repr(options)


def test_the_error_about_an_unknown_option_hides_its_value() -> None:
    """USE-3 SEC-7"""
    for name, value in (("sasl.pasword", "hush"), ("security.protocol", "hush")):
        with pytest.raises(ConfigurationError, match=name) as refused:
            kafka_options(BusSettings(url=URL, kafka={name: value}))
        assert "hush" not in str(refused.value)


def test_numbers_and_booleans_become_texts() -> None:
    """USE-3"""
    given = {"socket.keepalive.enable": True, "session.timeout.ms": 6000}
    options = kafka_options(BusSettings.model_validate({"url": URL, "kafka": given}))
    assert options.own == {"socket.keepalive.enable": "true", "session.timeout.ms": "6000"}


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka://host", "kafka://u:p@host:9092", "amqp://host:9092"]
)
def test_a_url_without_brokers_is_refused(url: str) -> None:
    """USE-3"""
    with pytest.raises(ValueError, match="kafka://host:9092"):
        BusSettings(url=url)
