"""Which names can be stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import names, outbox

storable = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


@given(storable.filter(lambda name: 0 < len(name) <= 255 and not name.startswith("__")))
def test_any_storable_text_is_a_name(name: str) -> None:
    assert names.validate_queue(name) == name


@given(storable, st.sampled_from(["\x00", "\ud800", "\udfff"]), storable)
def test_nul_and_lone_surrogates_are_refused_wherever_they_are(
    before: str, flaw: str, after: str
) -> None:
    with pytest.raises(outbox.InvalidName) as caught:
        names.validate_queue(before + flaw + after)

    assert str(caught.value).encode()


@given(storable)
def test_two_underscores_in_front_are_reserved(name: str) -> None:
    with pytest.raises(outbox.ReservedName):
        names.validate_queue(f"__{name[:253]}")
