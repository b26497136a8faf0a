"""The bus that the settings name."""

from paidonce.bus.contract import Bus
from paidonce.bus.postgres import PostgresBus
from paidonce.errors import ConfigurationError
from paidonce.settings import BusSettings


def open_bus(settings: BusSettings) -> Bus:
    """The bus; nothing is connected yet. Raises ConfigurationError."""
    if not settings.is_kafka:
        return PostgresBus()
    try:
        from paidonce.bus.kafka import KafkaBus
        from paidonce.bus.kafka_options import kafka_options
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "confluent_kafka":
            raise
        raise ConfigurationError(
            f"bus.url = {settings.url!r}: Kafka's client is not installed; "
            "pip install 'paidonce[kafka]'"
        ) from None
    return KafkaBus(kafka_options(settings))
