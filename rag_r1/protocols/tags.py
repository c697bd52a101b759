"""Tags in text: finding the action of a policy turn, and taking the tags out of retrieved text.

Model of a turn: a string cut by the eight tags of `TAG`, exactly as spelled; anything else that looks like a tag is
text. Reading goes from left to right:

* `<think>` and `<information>` open a stretch that is never executed; it ends at the first closing tag of its name
  (no nesting), or with the turn.
* An action is `<search>` or `<answer>` whose next tag is its own closing tag. The first one decides.
* What is malformed is skipped, so `<search>a</answer><answer>b</answer>` answers b; a stray closing tag is text (chat
  templates that open the thought in the prompt leave a lone `</think>`).

Invariant: characters after the closing tag of the action never change the result. A sampler that stops at the tag,
one whose last token carries more ("</search>\\n") and one that runs on give the same action.

The original takes the first regular-expression match anywhere in the text, also inside thoughts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TAG = re.compile(r"</?(?:think|search|answer|information)>")

# No nested repetition: linear in the text.
_LOOKS_LIKE_TAG = re.compile(
    r"<([\s/]*(?:think|search|answer|information)\b[^<>]*|[|｜][^<>]*[|｜])>",
    re.IGNORECASE,
)
_NEVER_EXECUTED = {"<think>": "tag_inside_think", "<information>": "information_written"}
_ACTIONS = {"<search>": "unclosed_search", "<answer>": "unclosed_answer"}


@dataclass(frozen=True, slots=True)
class Block:
    """A well-formed action: `tag` is "search" or "answer", `content` what stands inside, as written."""

    tag: str
    content: str


def first_block(text: str) -> Block | str:
    """The first well-formed action outside thoughts, or the reason (of `INVALID_REASONS`) why there is none."""
    tags = list(TAG.finditer(text))
    names = [tag.group() for tag in tags]
    problem = ""
    i = 0
    while i < len(tags):
        name = names[i]
        if name in _NEVER_EXECUTED:
            end = _index(names, _closing(name), i + 1)
            if any(inside.strip("</>") in ("search", "answer") for inside in names[i + 1 : end]):
                problem = problem or _NEVER_EXECUTED[name]
            elif end == len(names) and name == "<think>":
                problem = problem or "unclosed_think"
            i = end + 1
        elif name in _ACTIONS:
            if i + 1 < len(tags) and names[i + 1] == _closing(name):
                return Block(name[1:-1], text[tags[i].end() : tags[i + 1].start()])
            problem = problem or _ACTIONS[name]
            i += 1
        else:
            i += 1
    return problem or "no_action"


def neutralise(text: str) -> str:
    """`text` without tags: `</ Search >` becomes `[/ Search ]`, readable and inert. Applied twice it changes nothing.

    Covers the protocol's tags in any case, with blanks or attributes inside, and what tokenizers read as special
    tokens (`<|im_end|>`), which a passage could otherwise use to end the turn.
    """
    # A tag may appear only when one inside it is gone: `<search <|x|> >`.
    while (inert := _LOOKS_LIKE_TAG.sub(r"[\1]", text)) != text:
        text = inert
    return text


def _closing(name: str) -> str:
    return f"</{name[1:]}"


def _index(names: list[str], name: str, start: int) -> int:
    """Position of the first `name` from `start` on; `len(names)` where there is none."""
    try:
        return names.index(name, start)
    except ValueError:
        return len(names)
