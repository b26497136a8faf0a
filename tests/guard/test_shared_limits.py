"""Limits that several machines share by a Redis, and what is left of them without it."""

from typing import Final

from tests.support.redis_server import redis_like
from tests.support.servers import StartService
from tests.support.service import BASIC, Service, paid
from tests.support.tools import free_port, until

CONFIG: Final = """{basic}
[limits]
unverified = "5/minute"
storage = "{url}"
[security]
ban_threshold = 0
"""


def forge(service: Service) -> int:
    return service.deliver(paid("x"), secret="a guess").http


def test_what_one_counts_the_others_enforce(start_service: StartService) -> None:
    """SEC-1"""
    with redis_like() as redis:
        config = CONFIG.format(basic=BASIC, url=redis.url)
        here, there = start_service(config), start_service(config)
        assert [forge(here) for _ in range(5)] == [401] * 5
        until(lambda: sum(count for count, _ in redis.counts.values()) == 5)
        first = forge(there)
        assert first == 401, "it asks about somebody when it first meets him"
        until(lambda: forge(there) == 429)
        assert here.log_lines(event="limits_not_shared") == []
        assert there.seen_from("127.0.0.2").deliver(paid("real")).http == 200


def test_without_the_redis_each_process_limits_by_its_own_counts(
    start_service: StartService,
) -> None:
    """SEC-1: no request fails for it, and it is told once."""
    port = free_port()
    service = start_service(CONFIG.format(basic=BASIC, url=f"redis://127.0.0.1:{port}/0"))
    assert [forge(service) for _ in range(6)] == [401] * 5 + [429]
    assert service.seen_from("127.0.0.2").deliver(paid("real")).http == 200
    until(lambda: service.log_lines(event="limits_not_shared"))
    stranger = service.seen_from("127.0.0.3")
    with redis_like(port) as redis:

        def is_shared_again() -> bool:
            forge(stranger)
            return bool(service.log_lines(event="limits_shared_again"))

        until(is_shared_again)
        assert redis.counts
    assert len(service.log_lines(event="limits_not_shared")) == 1
