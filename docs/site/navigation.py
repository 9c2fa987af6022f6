"""Which pages the site has, and in which order: README.md lists them, and the index of the notes
lists the notes."""

from __future__ import annotations

import re

PAGES = [
    "*.md",
    "docs/*.md",
    "docs/notes/*.md",
    "examples/*.md",
    "src/tilewright/tables/shipped/**/*.md",
]
"""Patterns of the site's pages, from the repository's root."""

NOTES = "docs/notes/README"
"""The index of the notes on kernels."""


def navigation(readme: str) -> dict[str, list[str]]:
    """Pages by group, as README.md lists them: ``- Group: [title](page.md), …``."""
    _, _, section = readme.partition("\n## Documentation\n")
    groups = re.findall(r"^- (\w[\w ]*):(.*?)(?=^- |^$)", section, re.M | re.S)
    return {group: re.findall(r"\]\(([^)#]+)\.md\)", pages) for group, pages in groups}


def notes(index: str) -> list[str]:
    """The pages that the text of `NOTES` lists, from its folder: ``- [title](page.md)``."""
    return re.findall(r"^- \[[^\]]+\]\(([\w-]+)\.md\)", index, re.M)
