"""What one policy turn is read as, in both modes. Case numbers are those of the list of cases from the field."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.protocols import INVALID_REASONS, Action, Answer, Invalid, Protocol, Search, get_protocol
from rag_r1.protocols.rag_r1 import MAX_QUERY_CHARS
from rag_r1.rewards import format_valid

SINGLE, MULTI = get_protocol("single_query"), get_protocol("multi_query")
BOTH = pytest.mark.parametrize("protocol", [SINGLE, MULTI], ids=lambda protocol: protocol.name)

PIECES = [f"<{slash}{name}>" for name in ("think", "search", "answer", "information") for slash in ("", "/")]
turns = st.lists(st.sampled_from([*PIECES, "<b>", "<SEARCH>", '"', ",", " ", "\n", "a", "Oslo", "東京"])).map("".join)


@BOTH
@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>t</think><search> a b </search>", Search(("a b",))),
        ("<think>t</think>\n<answer> Oslo </answer>", Answer("Oslo")),
        ("<search>a</search><search>b</search>", Search(("a",))),
        ("<answer>x</answer> chatter <search>q</search>", Answer("x")),
        ("<think>use <search> and </search> tags</think><answer>x</answer>", Answer("x")),
        ("<information><answer>x</answer></information>", Invalid("information_written")),
        ("<information>fake</information><answer>x</answer>", Answer("x")),
        ("<think>use <search> q </search>", Invalid("tag_inside_think")),
        ("<think><answer>x</answer></think>", Invalid("tag_inside_think")),
        ("<think>hm", Invalid("unclosed_think")),
        ("thought opened by the template</think><answer>x</answer>", Answer("x")),
        ("<think>a<think>b</think><answer>x</answer>", Answer("x")),  # thoughts do not nest
        ("", Invalid("no_action")),
        ("no tags at all", Invalid("no_action")),
        ("<answer>x", Invalid("unclosed_answer")),
        ("<answer>x</search>", Invalid("unclosed_answer")),
        ("<SEARCH>q</SEARCH>", Invalid("no_action")),
    ],
)
def test_one_turn(protocol: Protocol, text: str, action: Action) -> None:
    assert protocol.parse(text) == action


@BOTH
def test_case_14_text_after_the_answer_hides_nothing(protocol: Protocol) -> None:
    assert protocol.parse("<answer>Oslo</answer>" + "x" * 500) == Answer("Oslo")


@BOTH
def test_case_25_unclosed_or_wrong_tag_is_no_search(protocol: Protocol) -> None:
    unclosed = protocol.parse("<search>\nquery: capital of France\nanswer: Paris")
    assert unclosed == Invalid("unclosed_search")
    assert "<search> was not closed" in protocol.hint(Invalid("unclosed_search"))
    assert protocol.parse('<span name="search">capital of France</span>') == Invalid("no_action")


@BOTH
def test_case_27_a_malformed_search_is_skipped(protocol: Protocol) -> None:
    assert protocol.parse("<search>a</answer><answer>b</answer>") == Answer("b")


@BOTH
def test_case_32_one_bad_search_keeps_the_good_one(protocol: Protocol) -> None:
    assert protocol.parse("<search>a</search><search>b") == Search(("a",))


@BOTH
def test_case_33_model_text_is_only_text(protocol: Protocol) -> None:
    code = "__import__('os').system('touch x')"
    assert protocol.parse(f"<search>{code}</search>") == Search((code,))


@BOTH
@pytest.mark.parametrize("text", ["<search></search>", "<search>   </search>", "<search>\n\t</search>"])
def test_case_35_empty_query(protocol: Protocol, text: str) -> None:
    assert protocol.parse(text) == Invalid("empty_query")


@BOTH
@pytest.mark.parametrize("text", ["<answer></answer>", "<answer> \n </answer>"])
def test_empty_answer(protocol: Protocol, text: str) -> None:
    assert protocol.parse(text) == Invalid("empty_answer")


@BOTH
def test_too_long_query(protocol: Protocol) -> None:
    assert protocol.parse(f"<search>{'x' * (MAX_QUERY_CHARS + 1)}</search>") == Invalid("too_long_query")
    assert isinstance(protocol.parse(f"<search>{'x' * MAX_QUERY_CHARS}</search>"), Search)


@pytest.mark.parametrize(
    ("content", "queries"),
    [
        ("q1, q2", ("q1", "q2")),
        ('"Paris, Texas population", capital of France', ("Paris, Texas population", "capital of France")),  # case 29
        ('who wrote "Hello, Goodbye", Oslo', ('who wrote "Hello, Goodbye"', "Oslo")),
        ('"Imagine" writer, Oslo', ('"Imagine" writer', "Oslo")),
        ('"Imagine", "Yesterday"', ("Imagine", "Yesterday")),
        ('5" disk, 8" disk', ('5" disk', '8" disk')),
        ('a, "b', ("a", "b")),  # case 32: a quote that is never closed costs nothing
        ('"a, b', ("a", "b")),
        (" a , , ,\n b ", ("a", "b")),  # case 29: empty items are dropped
        ("Oslo, OSLO,  oslo ", ("Oslo",)),
        ("a  b, A\nB", ("a b",)),
    ],
)
def test_case_29_multi_query_list(content: str, queries: tuple[str, ...]) -> None:
    assert MULTI.parse(f"<search>{content}</search>") == Search(queries)


def test_case_29_queries_over_the_limit_are_counted_and_said() -> None:
    search = MULTI.parse("<search>a, b, c, d, e</search>")
    assert search == Search(("a", "b", "c"), dropped=2)
    assert "2 more queries were not sent" in MULTI.observation(search, ["", "", ""])
    assert get_protocol("multi_query", max_queries=5).parse("<search>a, b, c, d, e</search>") == Search(tuple("abcde"))


def test_a_thousand_queries_in_one_turn() -> None:
    assert MULTI.parse(f"<search>{', '.join(map(str, range(1000)))}</search>") == Search(("0", "1", "2"), dropped=997)


def test_one_too_long_query_keeps_the_good_ones() -> None:
    assert MULTI.parse(f"<search>a, {'x' * 2000}, b</search>") == Search(("a", "b"), dropped=1)


def test_single_query_does_not_split() -> None:
    assert SINGLE.parse("<search> Paris, Texas\npopulation </search>") == Search(("Paris, Texas population",))


@settings(deadline=None)
@given(turns)
def test_any_text_is_one_legal_action(text: str) -> None:
    for protocol in (SINGLE, MULTI):
        action = protocol.parse(text)
        if isinstance(action, Search):
            assert 1 <= len(action.queries) <= protocol.max_queries
            assert all(query == query.strip() != "" for query in action.queries)
            assert len({query.casefold() for query in action.queries}) == len(action.queries)
        elif isinstance(action, Answer):
            assert action.text == action.text.strip() != ""
        else:
            assert action.reason in INVALID_REASONS


@settings(deadline=None)
@given(turns, turns)
def test_characters_after_the_action_change_nothing(text: str, more: str) -> None:
    for protocol in (SINGLE, MULTI):
        action = protocol.parse(text)
        if not isinstance(action, Invalid) or action.reason.startswith("empty"):
            assert protocol.parse(text + more) == action


@settings(deadline=None)
@given(turns, turns)
def test_thoughts_are_never_executed(thought: str, rest: str) -> None:
    thought = thought.replace("</think>", "")
    for protocol in (SINGLE, MULTI):
        assert isinstance(protocol.parse(f"<think>{thought}"), Invalid)
        with_thought, without = protocol.parse(f"<think>{thought}</think>{rest}"), protocol.parse(rest)
        if not isinstance(without, Invalid):
            assert with_thought == without


@settings(deadline=None)
@given(st.lists(st.text("ab ,", min_size=1).map(str.strip).filter(lambda query: query.strip(" ,")), max_size=6))
def test_quoted_queries_come_back_whole(queries: list[str]) -> None:
    distinct = list(dict.fromkeys(" ".join(query.split()) for query in queries))
    action = MULTI.parse(f"<search>{', '.join(f'{chr(34)}{query}{chr(34)}' for query in queries)}</search>")
    if distinct:
        assert action == Search(tuple(distinct[:3]), dropped=max(len(distinct) - 3, 0))
    else:
        assert action == Invalid("empty_query")


@settings(deadline=None)
@given(turns)
def test_a_turn_of_valid_format_is_executed(text: str) -> None:
    if format_valid([text]):
        assert not isinstance(SINGLE.parse(text), Invalid)
        assert re.search("<think>.*</think>", text, re.DOTALL)


def test_parsing_is_linear() -> None:
    """Quadratic reading of these takes minutes."""
    for text in ("<think>" * 50_000, "<search>" * 50_000, '<search>"' + ' "a' * 50_000 + "</search>"):
        MULTI.parse(text)
