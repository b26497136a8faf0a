"""The conformance suite fails for a wrong provider."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

import pytest

from paidonce.errors import InvalidSignatureError
from paidonce.providers.contract import Delivery, Provider
from tests.providers import test_conformance as suite
from tests.providers.cases import CASES
from tests.providers.conformance import TOLERANCE_S, Case

SIGNED: Final = [case for case in CASES if case.is_signed]
FORGERY_TESTS: Final[tuple[Callable[[Case], None], ...]] = (
    suite.test_an_unconfigured_secret_is_rejected,
    suite.test_each_flipped_bit_of_the_signature_and_signed_headers_is_rejected,
    suite.test_a_missing_header_is_rejected,
    suite.test_the_time_is_checked_after_the_signature,
    suite.test_an_error_contains_neither_secret_nor_expected_signature,
)
Verify = Callable[[Provider, Delivery], None]


class Altered:
    """A provider in all but the way it verifies."""

    def __init__(self, provider: Provider, verify: Verify) -> None:
        self._provider = provider
        self._verify = verify

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def verify(self, delivery: Delivery) -> None:
        self._verify(self._provider, delivery)


def verifying(case: Case, verify: Verify) -> Case:
    """The case of a provider that verifies like this."""

    def provider(*secrets: str, **settings: Any) -> Provider:
        return cast("Provider", Altered(case.provider(*secrets, **settings), verify))

    return replace(case, provider=provider)


def is_found_out(case: Case, test: Callable[..., None], *arguments: object) -> bool:
    """Whether the test of the suite fails."""
    try:
        test(case, *arguments)
    except (pytest.fail.Exception, AssertionError, InvalidSignatureError):
        return True
    return False


def believe(provider: Provider, delivery: Delivery) -> None:
    """Whatever it is."""


def refuse(provider: Provider, delivery: Delivery) -> None:
    raise InvalidSignatureError("whatever it is")


def believe_any_body(provider: Provider, delivery: Delivery) -> None:
    """Only that there is something to verify."""
    if not set(delivery.headers) - {"content-type"}:
        raise InvalidSignatureError("there is no signature")


@pytest.mark.parametrize("test", FORGERY_TESTS, ids=lambda test: test.__name__)
@pytest.mark.parametrize("case", SIGNED, ids=str)
def test_a_provider_that_accepts_everything_fails_the_suite(
    case: Case, test: Callable[[Case], None]
) -> None:
    """PRV-9: by each test of what is forged; of the provider as it is they find nothing."""
    assert is_found_out(verifying(case, believe), test)
    assert not is_found_out(case, test)


@pytest.mark.parametrize("case", [one for one in SIGNED if one.signs_whole_body], ids=str)
def test_a_provider_that_ignores_the_body_fails_the_suite(case: Case) -> None:
    """PRV-9 REC-1"""
    careless = verifying(case, believe_any_body)
    assert is_found_out(careless, suite.test_each_flipped_bit_of_the_body_is_rejected)
    assert is_found_out(careless, suite.test_a_byte_more_or_less_is_rejected, b" ")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_provider_that_rejects_everything_fails_the_suite(case: Case) -> None:
    """PRV-9"""
    assert is_found_out(verifying(case, refuse), suite.test_an_authentic_delivery_is_accepted)


@pytest.mark.parametrize("case", [one for one in CASES if one.signs_time], ids=str)
def test_a_provider_that_ignores_the_time_fails_the_suite(case: Case) -> None:
    """PRV-8"""

    def provider(*secrets: str, **settings: Any) -> Provider:
        return case.provider(*secrets, **settings | {"tolerance_s": None})

    test, late_s = suite.test_an_expired_time_is_rejected_with_its_own_error, TOLERANCE_S + 1
    assert is_found_out(replace(case, provider=provider), test, late_s)
    assert not is_found_out(case, test, late_s)
