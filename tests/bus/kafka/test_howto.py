"""What docs/howto/kafka.md tells people to do is done."""

import re
from pathlib import Path
from typing import Final

import orjson

from paidonce.bus.kafka.bus import KafkaBus
from paidonce.bus.kafka.options import kafka_options
from paidonce.bus.model import topic_of
from paidonce.db.queries import Connection
from paidonce.settings.sections import BusSettings, TopicSettings
from tests.bus.conftest import GROUP
from tests.bus.reading import message, read
from tests.support.kafka import Broker, MockBroker, fresh_name

HOWTO: Final = Path(__file__).parents[3] / "docs" / "howto" / "kafka.md"
ABOUT: Final = "wallet-payment"


async def test_a_producer_as_in_the_howto_starts_a_payment(
    kafka: Broker, connection: Connection
) -> None:
    """BUS-1 SVC-1: in the partition, too, in which ours would put it. Names begin as we like."""
    prefix = f"{fresh_name('howto')}."
    settings = BusSettings(url=f"kafka://{kafka.bootstrap}", topics=TopicSettings(prefix=prefix))
    bus = KafkaBus(kafka_options(settings))
    if isinstance(kafka, MockBroker):
        kafka.add_topics([f"{prefix}{ABOUT}", f"{prefix}{ABOUT}.{GROUP}.dlq"])
    ours = message(ABOUT, "cart-81", 2)
    (code,) = re.findall(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    reader = bus.reader(GROUP, [ABOUT])
    await reader.wait(connection, 1)  # from now on the topic is there
    theirs = code.replace("kafka-1:9092", kafka.bootstrap)
    exec(theirs.replace(f'"{topic_of(ABOUT)}"', f'"{prefix}{ABOUT}"'), {})
    await bus.publish([ours])
    first, second = await read(reader, connection, 2)
    await reader.close()
    await bus.close()
    assert (first.type, first.key, first.version) == ("PaymentInitiated", "cart-81", 1)
    assert orjson.loads(first.body)["amount"] == "100.00"
    assert (second.id, second.topic) == (ours.id, topic_of(ABOUT))
