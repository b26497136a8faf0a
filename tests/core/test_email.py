"""When two addresses are one."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.email import MAX_EMAIL, email_key, is_email, mask_email


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Buyer@Example.com", "buyer@example.COM"),
        ("  buyer@example.com\n", "buyer@example.com"),
        ("jose\u0301@example.com", "jos\u00e9@example.com"),
        ("JOSE\u0301@example.com", "jos\u00e9@example.com"),
        ("\u212bngstrom@example.com", "\u00e5ngstrom@example.com"),
        ("ИВАН@пример.рф", "иван@пример.рф"),
    ],
)
def test_letter_case_and_composition_make_no_difference(one: str, other: str) -> None:
    """PAY-5"""
    assert email_key(one) == email_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("straße@example.com", "strasse@example.com"),
        ("first.last@gmail.com", "firstlast@gmail.com"),
        ("buyer+shop@example.com", "buyer@example.com"),
        ("ﬁn@example.com", "fin@example.com"),
        ("\uff42uyer@example.com", "buyer@example.com"),
        ("bu\u0443er@example.com", "buyer@example.com"),
        ("buyer@googlemail.com", "buyer@gmail.com"),
    ],
)
def test_addresses_are_not_normalised_further(one: str, other: str) -> None:
    """PAY-5: no casefold, no compatibility forms, no knowledge of mail providers."""
    assert email_key(one) != email_key(other)


@given(st.text())
def test_email_key_is_idempotent(text: str) -> None:
    """PAY-5"""
    assert email_key(email_key(text)) == email_key(text)


@given(st.text())
def test_composed_and_decomposed_spellings_have_one_key(text: str) -> None:
    """PAY-5"""
    spellings = {email_key(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")}
    assert spellings == {email_key(text)}


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_case_makes_no_difference(text: str) -> None:
    """PAY-5"""
    assert email_key(text.upper()) == email_key(text.lower()) == email_key(text)


@pytest.mark.parametrize(
    "text", ["a@b", "buyer@example.com", "иван@пример.рф", '"a@b"@example.com']
)
def test_an_address_is_recognised(text: str) -> None:
    """PAY-5"""
    assert is_email(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "a@",
        "@b",
        "ab",
        "a b@c",
        "a@b\n",
        "a\x00@b",
        "a@b\u200b",
        "a\u00a0@b",
        "\ud800@b",
        "a" * MAX_EMAIL + "@b",
    ],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    """PAY-5"""
    assert not is_email(text)


@given(st.text())
def test_a_masked_address_never_shows_its_owner(text: str) -> None:
    """SEC-7"""
    local = text.rpartition("@")[0]
    shown = mask_email(text)
    assert "***" in shown
    assert len(local) < 2 or not shown.startswith(local)
