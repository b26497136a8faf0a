"""Payments out of a wallet where they are not, or wrongly, configured."""

import pytest

from paidonce.bootstrap.rules import load_gateway
from paidonce.errors import ConfigurationError
from paidonce.settings import Settings
from tests.support.servers import StartService
from tests.support.tools import is_problem

SOURCES = {"bank": {"provider": "tilda", "secrets": ["s"]}}
URL = "https://bank.example/v1"


def test_without_a_gateway_no_payment_starts(start_service: StartService) -> None:
    """SVC-1: it is refused at the door, with the reason, and nothing is set aside."""
    service = start_service()
    wallet = service.api("POST", "/wallets", {"owner": "o", "currency": "RUB"}).json
    asked = {"payment_id": "p", "wallet_id": wallet["id"], "amount": "1.00"}
    refused = service.api("POST", "/wallet-payments", asked)
    assert is_problem(refused, 409)
    assert refused.json["code"] == "NO_GATEWAY"
    assert service.api("GET", "/wallet-payments/p").http == 404


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"gateway_url": URL}, "gateway_url and source together"),
        ({"source": "bank"}, "gateway_url and source together"),
        ({"gateway_url": URL, "source": "elsewhere"}, "no such source"),
        ({"gateway_url": "bank.example", "source": "bank"}, "https://"),
        ({"gateway_url": "https://me:secret@bank.example", "source": "bank"}, "https://"),
        ({"gateway_url": URL, "source": "bank", "gateway_key": "env:NOT_SET"}, "NOT_SET"),
    ],
    ids=["no source", "no url", "unknown source", "no scheme", "secret in it", "no key"],
)
def test_wrong_settings_are_reported(chosen: dict[str, str], told: str) -> None:
    """USE-3"""
    with pytest.raises((ConfigurationError, ValueError), match=told):
        load_gateway(Settings(sources=SOURCES, payouts=chosen))
