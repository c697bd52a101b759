"""Golden answers in every form that files give them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.data import golden_list


@pytest.mark.parametrize(
    ("value", "golds"),
    [
        ("Paris", ["Paris"]),
        (["Paris", "Lutetia"], ["Paris", "Lutetia"]),
        (("Paris",), ["Paris"]),
        ('["Paris", "Lutetia"]', ["Paris", "Lutetia"]),
        ("1998", ["1998"]),
        ("[sic]", ["[sic]"]),
        ("[1, 2]", ["[1, 2]"]),
        ('{"a": 1}', ['{"a": 1}']),
        (np.array(["Paris", "Lutetia"], dtype=object), ["Paris", "Lutetia"]),
        (np.array("Paris"), ["Paris"]),
        (np.array([], dtype=object), []),
        (None, []),
        (float("nan"), []),
        ("", []),
        (["", " ", "Paris"], ["Paris"]),
    ],
)
def test_golden_list(value: object, golds: list[str]) -> None:
    assert golden_list(value) == golds


@pytest.mark.parametrize("value", [7, True, [1998], ["Paris", None], {"target": "Paris"}, np.array([1, 2])])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="string or a list of strings"):
        golden_list(value)


@settings(deadline=None)
@given(st.lists(st.text(min_size=1).filter(str.strip)))
def test_a_list_comes_back_as_it_is(golds: list[str]) -> None:
    assert golden_list(golds) == golden_list(np.array(golds, dtype=object)) == golds
