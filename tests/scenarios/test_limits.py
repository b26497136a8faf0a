"""S3 Webhook Security and Anti-Replay: rate limits, from many addresses."""

import json
from typing import Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import Sale
from tests.scenarios.merchant import Merchant, new_address, times
from tests.support.servers import Shared, StartService
from tests.support.service import Reply
from tests.support.tools import is_problem, until

CONFIG: Final = f"""{FOUR_GATEWAYS}
[server]
trusted_proxies = ["127.0.0.1/32"]
[limits]
unverified = "5/minute"
"""


def forge(merchant: Merchant, address: str) -> Reply:
    return merchant.send(Sale("creem", "nobody").told("another"), address)


def through_the_proxy(merchant: Merchant, client: str) -> Reply:
    """A forgery that a proxy of the merchant's own passes on."""
    return merchant.send(Sale("creem").told("another"), **{"x-forwarded-for": client})


def is_limited(reply: Reply) -> bool:
    """Whether the answer is 429 and says when to come again, and by which limit."""
    assert reply.http == 429, reply
    assert int(reply.headers["retry-after"]) > 0
    assert reply.headers["ratelimit"]
    assert reply.headers["ratelimit-policy"]
    return True


def test_an_address_that_sends_too_much_unverified_is_limited(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Rate limiting: 429 with the limit in its headers, on
    record in log and metrics, for this address alone, whatever address it claims to have.
    """
    address, other = new_address(), new_address()
    assert times(5, lambda: forge(merchant, address)) == [401] * 5
    reply = forge(merchant, address)
    assert is_limited(reply)
    assert is_problem(reply, 429)
    sent = Sale("creem").told("another")
    assert is_limited(merchant.send(sent, address, **{"x-forwarded-for": "192.0.2.77"}))
    assert is_limited(merchant.send(Sale("cn").told("another"), address))
    labels = {"provider": "creem", "http_code": "429"}
    assert merchant.service.metric("webhook_requests_total", **labels) == 2
    assert until(lambda: _told_of_limit(merchant, address))
    assert forge(merchant, other).http == 401
    sale = merchant.sale("creem")
    assert merchant.send(sale.told(), other).http == 200
    assert merchant.is_given(sale)


def _told_of_limit(merchant: Merchant, address: str) -> list[str]:
    lines = [json.dumps(line) for line in merchant.service.log_lines()]
    return [line for line in lines if address in line and "limit" in line.lower()]


def test_honest_deliveries_are_not_limited_unless_it_is_configured(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Rate limiting: a busy gateway sends a lot from one
    address.
    """
    address = new_address()
    sales = iter([merchant.sale("creem") for _ in range(30)])
    assert set(times(30, lambda: merchant.send(next(sales).told(), address))) == {200}
    assert times(5, lambda: forge(merchant, address)) == [401] * 5
    sale = merchant.sale("creem")
    assert merchant.send(sale.told(), address).http == 200, "a gateway has a higher limit"


def test_a_trusted_proxy_names_the_address_that_is_limited(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Rate limiting: behind a proxy, one client's flood does
    not count against another's, and the last address that the proxy names is the client's.
    """
    assert times(5, lambda: through_the_proxy(merchant, "192.0.2.1")) == [401] * 5
    assert is_limited(through_the_proxy(merchant, "192.0.2.1"))
    assert through_the_proxy(merchant, "192.0.2.2").http == 401
    assert is_limited(through_the_proxy(merchant, "192.0.2.9, 192.0.2.1"))
    assert merchant.send(merchant.sale("creem").told()).http == 200


@pytest.mark.parametrize("setting", ["per_address", "per_source"])
def test_all_that_is_sent_can_be_limited(
    start_service: StartService, database_url: str, setting: str
) -> None:
    """S3 Webhook Security and Anti-Replay / Rate limiting: also of what is verified, by address or
    by source.
    """
    config = f'{FOUR_GATEWAYS}\n[limits]\n{setting} = "6/minute"\n'
    merchant = Merchant(Shared(start_service(config), database_url))
    address = new_address()
    sale = merchant.sale("creem")
    assert times(6, lambda: merchant.send(sale.told(), address)) == [200] * 6
    late = merchant.sale("creem")
    assert is_limited(merchant.send(late.told(), address))
    assert not merchant.is_given(late)
    elsewhere = merchant.send(late.told(), new_address())
    other_source = merchant.send(merchant.sale("shop").told(), address)
    if setting == "per_address":
        assert elsewhere.http == 200
        assert is_limited(other_source)
    else:
        assert is_limited(elsewhere)
        assert other_source.http == 200
