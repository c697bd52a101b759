"""Does an answer match a golden answer? Exact match as published, F1 and containment, all on normalised text.

`normalise` is the rule of SQuAD, Search-R1 and RAG-R1: lower case, ASCII punctuation deleted, a/an/the dropped, white
space collapsed. It is bit-identical to the published rule with one exception: where dropping the articles would leave
nothing, they stay, so the golden answer "A" of a multiple choice is not the empty string. (Its weak spots are kept:
"3.14" equals "314"; see `numbers` for a rule that knows numbers.)

Invariants, for every prediction and golden answers:

* 0 <= EM <= F1 <= 1 and EM <= cover-EM; the best golden answer counts.
* No answer (None or blank) scores 0, also against a golden answer that normalises to nothing.
* Cover-EM is containment of whole words, reported under its own name and never the reward: an answer that lists every
  candidate always contains the right one.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = ("yes", "no", "noanswer")


def normalise(text: str) -> str:
    """The published normalisation; see the module for its one exception."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split()) or " ".join(text.split())


def exact_match(prediction: str | None, golden_answers: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals a normalised golden answer, else 0.0: the reward of the paper."""
    return _best(_equal, prediction, golden_answers)


def f1_score(prediction: str | None, golden_answers: Sequence[str]) -> float:
    """Best F1 of normalised words, in [0, 1]. Yes, no and noanswer match only themselves (as in HotpotQA's script)."""
    return _best(_f1, prediction, golden_answers)


def cover_match(prediction: str | None, golden_answers: Sequence[str]) -> float:
    """1.0 if the words of a golden answer stand in the prediction one after the other, else 0.0 (cover-EM).

    Whole words, where the published variant looks for a substring and finds "A" in "Paris".
    """
    return _best(_covers, prediction, golden_answers)


def score(answer: str | None, golden_answers: Sequence[str]) -> dict[str, float]:
    """`em` (the reward), `f1` and `cover_em` of one answer; None is a trajectory without an answer.

    Raises:
        TypeError: `golden_answers` is a string; make a list of it with `rag_r1.data.golden_list`.
    """
    return {
        "em": exact_match(answer, golden_answers),
        "f1": f1_score(answer, golden_answers),
        "cover_em": cover_match(answer, golden_answers),
    }


def _best(measure: Callable[[str, str], float], prediction: str | None, golden_answers: Sequence[str]) -> float:
    if isinstance(golden_answers, str):
        raise TypeError(f"golden_answers={golden_answers!r} is a string, not a list: use rag_r1.data.golden_list")
    if prediction is None or not prediction.strip():
        return 0.0
    predicted = normalise(prediction)
    return max((measure(predicted, normalise(gold)) for gold in golden_answers), default=0.0)


def _equal(predicted: str, gold: str) -> float:
    return float(predicted == gold)


def _f1(predicted: str, gold: str) -> float:
    words, gold_words = predicted.split(), gold.split()
    if predicted == gold:  # also where both normalise to nothing
        return 1.0
    if predicted in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS:
        return 0.0
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * common / (len(words) + len(gold_words))


def _covers(predicted: str, gold: str) -> float:
    return float(predicted == gold or (gold != "" and f" {gold} " in f" {predicted} "))
