"""Names of parties: their safe form is one token, readable, and of no other name."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coterie.deploy.names import MAX_NAME, RESERVED, check_name, safe
from coterie.protocol.errors import UserError

WORDS = st.text("abz09_", min_size=1, max_size=4) | st.integers(0, 99).map(str)
NAMES = st.builds(
    lambda first, steps: first + "".join(f"{separator}{word}" for separator, word in steps),
    st.from_regex(r"[a-z][a-z0-9_]{0,3}", fullmatch=True),
    st.lists(st.tuples(st.sampled_from("-/"), WORDS), max_size=4),
)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("client/3", "client-3"),
        ("client-3", "client--3"),
        ("hospital-a", "hospital-a"),
        ("hospital/a", "hospital--a"),
        ("key_centre", "key_centre"),
        ("a/b-3/4", "a--b--3-4"),
    ],
)
def test_the_safe_form_of_usual_names(name: str, token: str) -> None:
    assert safe(name) == token


@given(NAMES, NAMES)
@example("client/3", "client-3")
@example("a-1/b", "a/1-b")
def test_two_names_have_two_safe_forms(one: str, other: str) -> None:
    assert re.fullmatch("[a-z0-9_-]+", safe(one))
    assert (safe(one) == safe(other)) == (one == other)


@given(st.text(max_size=12))
@example("../x")
@example("a--b")
@example("a\n")
@example("Client/3")
def test_any_text_is_a_name_or_is_refused(text: str) -> None:
    try:
        check_name(text)
    except UserError:
        with pytest.raises(UserError):
            safe(text)
    else:
        assert re.fullmatch("[a-z0-9_-]+", safe(text))


@pytest.mark.parametrize("name", ["", "a" * (MAX_NAME + 1), "-a", "a-", "a//b", "a b", "a.b", "é", *sorted(RESERVED)])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UserError, match="no name of a party"):
        check_name(name)
