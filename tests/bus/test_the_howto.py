"""What docs/howto/kafka.md tells people to do is done."""

import re
from pathlib import Path
from typing import Final

import orjson

from paidonce.bus.kafka import KafkaBus
from paidonce.bus.messages import topic_of
from paidonce.store.queries import Connection
from tests.brokers.kafka import Broker, MockBroker
from tests.bus.conftest import GROUP
from tests.bus.reading import message, read

HOWTO: Final = Path(__file__).parents[2] / "docs" / "howto" / "kafka.md"
ABOUT: Final = "wallet-payment"


async def test_a_producer_as_in_the_howto_starts_a_payment(
    kafka: Broker, bus: KafkaBus, connection: Connection
) -> None:
    """BUS-1 SVC-1: in the partition, too, in which ours would put it."""
    if isinstance(kafka, MockBroker):
        kafka.add_topics([topic_of(ABOUT), f"{topic_of(ABOUT)}.{GROUP}.dlq"])
    ours = message(ABOUT, "cart-81", 2)
    (code,) = re.findall(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    reader = bus.reader(GROUP, [ABOUT])
    await reader.fetch(connection, 1)  # from now on the topic is there
    exec(code.replace("kafka-1:9092", kafka.bootstrap), {})
    await bus.publish([ours])
    first, second = await read(reader, connection, 2)
    await reader.close()
    assert (first.type, first.key, first.version) == ("PaymentInitiated", "cart-81", 1)
    assert orjson.loads(first.body)["amount"] == "100.00"
    assert second.id == ours.id
