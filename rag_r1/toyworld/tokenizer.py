"""The tokenizer of the tiny policy: few, meaningful tokens for toy text, bytes for anything else.

Model. A regular expression cuts text into pieces: words of the templates with the blanks around them, the syllables
of names, years, and whatever the protocols put around names and passages. A piece in the vocabulary is one token;
any other piece becomes one token a byte. There is no training and no merge: the vocabulary is collected from the
texts that the toy can produce, so a change of a template or of a protocol cannot leave it behind.

Invariants:
- every text round-trips: `decode(encode(text)) == text`;
- each tag of the protocols is one token and nothing but that tag gives it;
- a name is the same two tokens wherever it stands (blanks belong to the words beside it), which is what makes
  copying learnable in minutes; a plain BPE cuts names off-syllable and copying suffers;
- pad and eos are different tokens, so no mask can confuse them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag_r1.protocols.base import Protocol, Search
from rag_r1.retrieval.corpus import split_page
from rag_r1.toyworld import TOPK, toy_protocol
from rag_r1.toyworld.questions import FORMS
from rag_r1.toyworld.teacher import THOUGHTS
from rag_r1.toyworld.world import FIRST_SYLLABLES, LAST_SYLLABLES, SENTENCES, YEARS

TAGS = tuple(f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/"))
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
PAD, EOS = "<|pad|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_NAME = FIRST_SYLLABLES[0] + LAST_SYLLABLES[0]
_TAG = re.compile("|".join(map(re.escape, TAGS)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the tiny policy, to be saved with `save_pretrained`. It has no randomness."""
    pattern = _pattern()
    pieces = [*FIRST_SYLLABLES, *LAST_SYLLABLES, *YEARS, *(f"{year} " for year in YEARS), *_frames()]
    for text in _sample_texts():
        for part in _TAG.split(text):
            pieces += (match.group() for match in re.finditer(pattern, part))
    specials = [PAD, EOS, *ROLES]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = ("".join(part for part, _ in byte_level.pre_tokenize_str(piece)) for piece in pieces)
    vocabulary = dict.fromkeys([*specials, *TAGS, *alphabet, *spelled])
    # `ignore_merges` makes a whole piece its token; without merges, what is no token falls apart into bytes.
    model = models.BPE(vocab={piece: i for i, piece in enumerate(vocabulary)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = partial(AddedToken, normalized=False)
    tokenizer.add_special_tokens([added(token, special=True) for token in specials])
    # Tags are text that the protocols parse, so they must survive `skip_special_tokens=True`.
    tokenizer.add_tokens([added(tag, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        # transformers 5 loads the tokenizer of every qwen2 model as Qwen2Tokenizer, which has splitting rules of its own,
        # unless the tokenizer's configuration holds an `auto_map`; one that names nothing leaves this tokenizer as it is.
        auto_map={"AutoTokenizer": [None, None]},
    )


def _pattern() -> str:
    """Pieces, by priority: frames of the protocols, words with their blanks, years, syllables, the rest."""
    words = {word for text in _sample_texts() for word in re.findall("[A-Za-z]+", text.replace(_NAME, " "))}
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return "|".join(
        [
            *map(re.escape, _frames()),
            f" ?(?<![A-Za-z])(?:{'|'.join(longest_first)})(?![A-Za-z]) ?",
            f"(?:{'|'.join(YEARS)}) ?",
            "|".join(FIRST_SYLLABLES),
            "|".join(LAST_SYLLABLES),
            r"[.,?] ?",
            r"[^\w\s]+",
            r"\s+",
        ]
    )


def _sample_texts() -> Iterator[str]:
    """Every template that toy text is made of, filled in with one name and year."""
    facts = ("city", "country", "capital", "director", "founder", "other", "value")
    fill = {**dict.fromkeys(facts, _NAME), "name": _NAME, "year": YEARS[0], "compared": YEARS[0]}
    yield from (sentence.format(**fill) for sentence in SENTENCES.values())
    relations = sorted({relation for form in FORMS for relation in form.path})
    for thought, relation in product(THOUGHTS.values(), relations):
        yield thought.format(relation=relation, **fill)
        yield f", {thought.format(relation=relation, **fill)}, "
    yield from (f"the {relation}" for relation in relations)
    for protocol in _protocols():
        for form in FORMS:
            (message,) = protocol.messages(form.wording.format(_NAME, _NAME))
            yield message["content"]
        yield from _observations(protocol)


def _frames() -> list[str]:
    """What the protocols write around names and passages, longest first: each is one token."""
    found: dict[str, None] = {}
    for protocol in _protocols():
        for text in _observations(protocol):
            for part in _TAG.split(text):
                found.update(dict.fromkeys(re.split(f"{re.escape(_passage())}|{_NAME}", part)))
    return sorted((frame for frame in found if frame), key=lambda frame: (-len(frame), frame))


def _observations(protocol: Protocol) -> Iterable[str]:
    documents = protocol.documents([_passage()] * TOPK)
    for count in range(1, protocol.max_queries + 1):
        yield protocol.observation(Search((_NAME,) * count), [documents] * count)


def _passage() -> str:
    return split_page(_NAME, [_NAME, SENTENCES["country"].format(name=_NAME, capital=_NAME)])[0]


def _protocols() -> list[Protocol]:
    return [toy_protocol(name) for name in ("single_query", "multi_query")]
