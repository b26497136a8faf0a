"""The bus that the settings name."""

from importlib import import_module

from paidonce.bus.contract import Bus
from paidonce.bus.postgres import PostgresBus
from paidonce.errors import ConfigurationError
from paidonce.settings import BusSettings


def open_bus(settings: BusSettings) -> Bus:
    """The bus; nothing is connected yet. Raises ConfigurationError."""
    if not settings.is_kafka:
        return PostgresBus()
    try:
        kafka = import_module("paidonce.bus.kafka")
        options = import_module("paidonce.bus.kafka_options")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "confluent_kafka":
            raise
        raise ConfigurationError(
            f"bus.url = {settings.url!r}: Kafka's client is not installed; "
            "pip install 'paidonce[kafka]'"
        ) from None
    bus: Bus = kafka.KafkaBus(options.kafka_options(settings))
    return bus
