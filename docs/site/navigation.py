"""Which pages the site has, and in which order: README.md lists them."""

from __future__ import annotations

import re

PAGES = ["*.md", "docs/*.md", "examples/*.md", "src/tilewright/tables/shipped/**/*.md"]
"""Patterns of the site's pages, from the repository's root."""


def navigation(readme: str) -> dict[str, list[str]]:
    """Pages by group, as README.md lists them: ``- Group: [title](page.md), …``."""
    _, _, section = readme.partition("\n## Documentation\n")
    groups = re.findall(r"^- (\w[\w ]*):(.*?)(?=^- |^$)", section, re.M | re.S)
    return {group: re.findall(r"\]\(([^)#]+)\.md\)", pages) for group, pages in groups}
