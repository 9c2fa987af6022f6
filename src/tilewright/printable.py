"""Makes text of unknown origin safe to print."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` with control characters made visible: ``\\x1b`` for an escape. Newlines and tabs stay.

    Names, reasons and device descriptions come from files, and a terminal obeys control characters
    in them: they could move the cursor over earlier output, set the window's title, or make text
    run from right to left.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(sign: str) -> str:
    if sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cf", "Zl", "Zp"):
        return sign
    return sign.encode("unicode_escape").decode()
