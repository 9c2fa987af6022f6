"""What attention may do besides softmax(Q·Kᵀ)·V: a word for each thing.

A problem's words, joined by ``+`` in the order of `FEATURES`, are its `features`. A config computes
exactly the features that its field of the same name says, and a kernel's name ends with them. A
pipeline's record lists the words that its kernel knows.
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.errors import BadArgument, nearest

FEATURES: dict[str, str] = {
    "lse": "returns the logarithm of each row's sum of exponentials",
    "softcap": "scores s become cap·tanh(s / cap), before bias and mask",
    "bias": "a matrix is added to the scores",
    "bias32": "the bias is in fp32, beside operands of fewer bits",
    "biasbool": "the bias says which keys a query sees, and is not added",
    "blocks": "a mask says which blocks of keys each block of queries sees",
    "alibi": "a head's slope, times the distance of key and query, is taken from the scores",
    "sinks": "a head's learned score joins the softmax and has no value",
    "dropout": "random weights become zero",
    "random": "returns the random numbers of dropout",
    "packedq": "queries of all sequences follow one another, and begin at offsets",
    "packedkv": "keys and values of all sequences follow one another, and begin at offsets",
    "usedq": "each sequence has its own number of queries",
    "usedkv": "each sequence has its own number of keys",
    "leftpad": "each sequence leaves out its first keys",
    "pagetable": "keys and values lie in pages; a table has a row of pages for each sequence",
    "pagelist": "keys and values lie in pages; one list has all sequences' pages, with offsets",
    "vectorised": "pages hold groups of elements of 16 bytes apart",
    "latent": "values are the first elements of the keys",
    "tscale": "one scale each for Q, for K and for V",
    "hscale": "a scale for each sequence and head of keys, of Q, K and V each",
    "bscale": "a scale for each head and block of tokens, of Q, K and V each",
    "oscale": "the output is divided by a scale",
    "append": "new keys and values are first written behind those of the cache",
    "rotaryi": "queries and new keys are rotated, neighbouring elements together",
    "rotaryh": "queries and new keys are rotated, the first half's elements with the second's",
}
"""What each word means, in the order in which words are written."""

CHOICES: tuple[tuple[str, ...], ...] = (
    ("bias", "alibi"),
    ("packedkv", "pagetable", "pagelist"),
    ("leftpad", "packedkv"),
    ("leftpad", "pagelist"),
    ("tscale", "hscale", "bscale"),
    ("rotaryi", "rotaryh"),
    ("append", "packedkv"),
    ("latent", "rotaryi"),
    ("latent", "rotaryh"),
)
"""Words of which a problem has at most one."""

REQUIRED: dict[str, tuple[str, ...]] = {
    "bias32": ("bias",),
    "biasbool": ("bias",),
    "random": ("dropout",),
    "pagetable": ("usedkv",),
    "pagelist": ("usedkv",),
    "vectorised": ("pagetable", "pagelist"),
    "leftpad": ("usedkv",),
    "append": ("usedkv",),
    "rotaryi": ("append",),
    "rotaryh": ("append",),
}
"""For a word, those of which a problem that has it has one too."""


def join(words: frozenset[str] | set[str]) -> str:
    """The text of a set of words."""
    return "+".join(word for word in FEATURES if word in words)


@lru_cache(maxsize=4096)
def listed(features: str) -> frozenset[str]:
    """The words of a text, which need not be all that a problem has. Raises `BadArgument` for
    unknown words, and for words in another order or twice."""
    words = features.split("+") if features else []
    for word in words:
        if word not in FEATURES:
            raise BadArgument(
                f"attention has no feature '{word}'{nearest(word, FEATURES)}; it has "
                f"{', '.join(FEATURES)}"
            )
    found = frozenset(words)
    if join(found) != features:
        raise BadArgument(f"features '{features}' must be written as '{join(found)}'")
    return found


@lru_cache(maxsize=4096)
def also(features: str, more: tuple[str, ...]) -> str:
    """The text of the words of a text and of more words. Raises `BadArgument` as `listed` does."""
    return join(listed(features) | set(more))


@lru_cache(maxsize=4096)
def split(features: str) -> frozenset[str]:
    """All words of a problem, from a text. Raises `BadArgument` as `listed` does, and for words
    that contradict one another or lack one that they need."""
    found = listed(features)
    for choice in CHOICES:
        both = [word for word in choice if word in found]
        if len(both) > 1:
            raise BadArgument(f"attention has {both[0]} or {both[1]}, not both")
    for word, others in REQUIRED.items():
        if word in found and not found.intersection(others):
            raise BadArgument(f"attention with {word} needs {' or '.join(others)}")
    return found
