"""What is answered when the month of an event is gone."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from paidonce.db.pool import Database
from paidonce.db.schema import ensure_partitions
from paidonce.db.search import first_id_at
from paidonce.maintenance.partitions import OldPartitions
from tests.support.service import Service, paid
from tests.support.tools import is_problem, items


async def test_a_redelivery_of_a_month_that_is_gone_is_a_duplicate_of_the_first(
    service: Service, database: Database
) -> None:
    """INB-4: keys outlive payloads; the event itself is not found any more."""
    user = service.user("buyer@example.com")
    first = service.deliver(paid("p-1")).json
    assert first["status"] == "success"
    long_ago = datetime.now(UTC) - timedelta(days=500)
    aged = UUID(int=first_id_at(long_ago).int | 1)
    async with database.connection() as connection:
        await ensure_partitions(connection, long_ago)
        await connection.execute("UPDATE webhook_events SET id = $1", aged)
        await connection.execute("UPDATE event_keys SET event_id = $1", aged)
        assert service.api("GET", f"/events/{aged}").http == 200
        await OldPartitions(400, is_dropped=True).run_once(connection, datetime.now(UTC))

    assert is_problem(service.api("GET", f"/events/{aged}"), 404)
    assert service.deliver(paid("p-1")).json == {"status": "duplicate", "event_id": str(aged)}
    conflict = service.deliver(paid("p-1", amount="1.00")).json
    assert conflict["status"] == "conflict"
    (event,) = items(service, "/events")
    assert event["error_code"] == "PAYLOAD_CONFLICT"
    (payment,) = items(service, "/payments", email="buyer@example.com")
    assert (payment["captured"], payment["user_id"]) == ("990.00", user["id"])
    assert service.log_lines(level="error") == []
