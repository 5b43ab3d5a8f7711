"""Tokens that work once, secrets that change with every connection."""

import re

import pytest

from asfl.field.stream.access import Access, AccessError, client_of


def test_a_token_works_until_its_successor_is_confirmed() -> None:
    access = Access(2)
    token = access.tokens[1]
    client, offered = access.admit(token)
    assert client == client_of(token) == 1
    assert access.admit(token)[0] == 1  # the first welcome may have been lost
    client, offered = access.admit(token)
    access.confirm(1, offered)
    with pytest.raises(AccessError, match="used before"):
        access.admit(token)


def test_every_connection_changes_the_secret_and_old_ones_are_void() -> None:
    access = Access(1)
    seen = [access.tokens[0]]
    for _ in range(4):
        _, offered = access.admit(seen[-1])
        access.confirm(0, offered)
        for old in seen:
            with pytest.raises(AccessError):
                access.admit(old)
        seen.append(offered)


def test_who_got_the_new_secret_but_could_not_say_so_is_not_locked_out() -> None:
    access = Access(1)
    _, offered = access.admit(access.tokens[0])
    _, second = access.admit(offered)
    access.confirm(0, second)
    with pytest.raises(AccessError):
        access.admit(access.tokens[0])


def test_of_two_with_the_same_token_the_first_to_confirm_comes_in() -> None:
    access = Access(1)
    _, first = access.admit(access.tokens[0])
    _, second = access.admit(access.tokens[0])
    assert access.confirm(0, second)
    assert not access.confirm(0, first)
    with pytest.raises(AccessError):
        access.admit(first)
    assert access.admit(second)[0] == 0


def test_a_call_that_was_given_up_and_comes_late_locks_nobody_out() -> None:
    access = Access(1)
    _, offered = access.admit(access.tokens[0])
    access.admit(access.tokens[0])  # made before, admitted later
    assert access.confirm(0, offered)
    assert access.admit(offered)[0] == 0


def test_what_is_kept_of_a_client_is_bounded() -> None:
    access = Access(1)
    for _ in range(100):
        _, latest = access.admit(access.tokens[0])
    assert len(access._valid[0]) < 20
    assert access.confirm(0, latest)


def test_tokens_are_bound_to_their_client() -> None:
    access = Access(2)
    secret = access.tokens[0].partition(".")[2]
    with pytest.raises(AccessError, match="client 1"):
        access.admit(f"1.{secret}")
    with pytest.raises(AccessError, match="no client 2"):
        access.admit(f"2.{secret}")
    assert len({token.partition(".")[2] for token in Access(50).tokens}) == 50


def test_a_renewed_token_replaces_everything() -> None:
    access = Access(1)
    token, (_, offered) = access.tokens[0], access.admit(access.tokens[0])
    renewed = access.renew(0)
    for old in (token, offered):
        with pytest.raises(AccessError):
            access.admit(old)
    assert access.admit(renewed)[0] == 0


@pytest.mark.parametrize("text", ["", "1", "1.", "x." + "0" * 64, "01." + "0" * 64, "1." + "0" * 63, "1." + "G" * 64,
                                  "-1." + "0" * 64, "1." + "0" * 64 + "\n", "١." + "0" * 64])  # fmt: skip
def test_what_is_no_credential(text: str) -> None:
    with pytest.raises(AccessError, match="not a credential"):
        Access(2).admit(text)


def test_errors_never_show_a_secret() -> None:
    access = Access(1)
    with pytest.raises(AccessError) as refused:
        access.admit("0." + "ab" * 32)
    assert not re.search("abab", str(refused.value))
