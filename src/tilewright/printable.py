"""Text of anybody's as it may be printed."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` with what a terminal would obey, instead of showing it, made visible: ``\\x1b`` for an
    escape. Lines and tabs stay.

    Names, reasons and device descriptions come from files, and a terminal obeys what they contain:
    it would move the cursor over what was printed before, set its title, or write from right to
    left.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(sign: str) -> str:
    if sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cf", "Zl", "Zp"):
        return sign
    return sign.encode("unicode_escape").decode()
