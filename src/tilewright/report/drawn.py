"""Parts of pages that are drawn here, and have no script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.printable import printable


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls sideways."""
    head = "".join(f"<th>{said(title)}</th>" for title in titles)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{said(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def said(text: Any) -> str:
    """Text that no browser takes for markup."""
    return html.escape(printable(str(text)))
