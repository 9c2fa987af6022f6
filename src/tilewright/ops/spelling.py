"""The words of a problem as people type them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.errors import BadArgument, nearest


def spelled(
    what: str, words: Mapping[str, str], known: Collection[str], listed: Collection[str] = ()
) -> dict[str, str]:
    """The words in the family's spelling: ``M=64`` is ``m=64``, and ``kv-heads=8`` is
    ``kv_heads=8``.

    what: as errors say it, ``a gemm problem``. known: every word of the family. listed: the words
    that errors list, if not all.

    Raises `BadArgument` for an unknown word, and for a word that is said in two spellings.
    """
    found: dict[str, str] = {}
    for word, text in words.items():
        ours = word if word in known else word.strip("-").replace("-", "_").lower()
        if ours not in known:
            raise BadArgument(
                f"{what} has no '{word}'{nearest(ours, known)}; it has {', '.join(listed or known)}"
            )
        if ours in found:
            raise BadArgument(f"{what} says {ours} twice: once as '{word}'")
        found[ours] = text
    return found
