"""Metrics by source, from the first scrape on."""

from typing import Final

from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, paid

TWO_SOURCES: Final = f"""{BASIC}
[sources.second]
provider = "tilda"
secrets = ["another-secret"]
"""
CONFIG: Final = TWO_SOURCES
COUNTERS: Final = (
    "webhook_received_total",
    "webhook_processed_total",
    "webhook_duplicate_total",
    "webhook_conflict_total",
    "webhook_failed_retryable_total",
    "webhook_failed_final_total",
    "webhook_dead_letter_total",
    "webhook_invalid_signature_total",
    "payments_unlinked_total",
    "payments_amount_mismatch_total",
    "webhook_recovered_total",
    "webhook_processing_duration_ms_count",
)


def test_two_sources_of_one_provider_are_counted_apart(shared: Shared) -> None:
    """OBS-2"""
    service = shared.service
    service.deliver(paid("apart-1"), secret="wrong")
    service.deliver(paid("apart-2"), secret="wrong", source="second")
    service.deliver(paid("apart-3"), secret="wrong", source="second")
    refused = {
        labels["source"]: value
        for labels, value in service.series("webhook_invalid_signature_total", provider="tilda")
    }
    assert refused == {"payments": 1, "second": 2}
    answered = service.series("webhook_requests_total", http_code="401", source="second")
    assert answered == [({"provider": "tilda", "source": "second", "http_code": "401"}, 2)]


def test_what_strangers_write_is_no_label(shared: Shared) -> None:
    """OBS-2 SEC-8: so the number of series is bounded."""
    service = shared.service
    before = len(service.series("webhook_requests_total"))
    for number in range(5):
        service.deliver(paid(f"nobody-{number}"), source=f"unknown_{number}")
    assert service.metric("webhook_requests_total", source="unknown", http_code="404") == 5
    assert len(service.series("webhook_requests_total")) == before
    sources = {labels["source"] for labels, _ in service.series("webhook_requests_total")}
    assert sources == {"payments", "second", "unknown"}


def test_counters_begin_at_zero_in_every_process(start_service: StartService) -> None:
    """OBS-2: `increase()` sees only what comes after the first value of a series."""
    for arguments in ([], ["--processes", "2"]):
        service = start_service(TWO_SOURCES, arguments=arguments)
        for name in COUNTERS:
            found = {labels["source"]: value for labels, value in service.series(name)}
            assert found == {"payments": 0, "second": 0}, name
        codes = service.series("webhook_requests_total", source="second")
        assert {labels["http_code"] for labels, _ in codes} >= {"200", "400", "401", "503"}
        assert {value for _, value in codes} == {0}
        assert service.metric("service_crashes_total", service="relay") == 0
        assert len(service.series("service_crashes_total", service="relay")) == 1
        assert service.series("log_lines_dropped_total") == [({}, 0)]
        service.deliver(paid(f"first-{len(arguments)}", email=None))
        for name in ("payments_unlinked_total", "webhook_requests_total"):
            assert service.metric(name, source="payments") == 1, name
        service.end()
