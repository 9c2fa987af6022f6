"""A Sphinx extension: the parts of the site that are made from the code or from another page.

- The navigation is the list under `Documentation` in README.md, and the one in the notes' index.
- docs/api.md gets the reference of the public interface, from docstrings.
- docs/commands.md gets the reference of the commands, from typer's own generator.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from sphinx.util import logging

from navigation import NOTES, navigation, notes
from public_interface import Public, interface, undocumented

ROOT = Path(__file__).parent.parent.parent

# Inherited methods are listed where a class has them; those of Python's own classes are not.
_OPTIONS = {
    "class": ("   :members:", "   :inherited-members: object, tuple, Protocol, Generic"),
    "exception": ("   :show-inheritance:",),
}

_NAME = r"(?:[a-z_]\w*|[A-Z][A-Z_]*)"
"""A parameter, an axis of a kernel, or a matrix: A, B or C."""

log = logging.getLogger(__name__)


def _toctrees(readme: str) -> str:
    trees = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *pages, "```", ""])
        for group, pages in navigation(readme).items()
    )
    return "\n".join(trees)


def _notes(index: str) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *notes(index), "```", ""])


def _reference(public: Public) -> str:
    lines = [f"## {public.module}", ""]
    if public.elsewhere:
        lines += [f"Above: {', '.join(f'`{name}`' for name in public.elsewhere)}.", ""]
    lines += ["```{eval-rst}", f".. py:currentmodule:: {public.module}", ""]
    for name, kind in public.names.items():
        lines += [f".. auto{kind}:: {public.module}.{name}", *_OPTIONS.get(kind, ()), ""]
    return "\n".join([*lines, "```", ""])


def _commands() -> str:
    """Typer's reference in Markdown, from the first command on; examples are put into fences."""
    call = [sys.executable, "-m", "typer", "tilewright.cli.app", "utils", "docs"]
    done = subprocess.run(
        [*call, "--name", "tilewright"], check=True, capture_output=True, text=True
    )
    _, _, commands = done.stdout.partition("\n## ")
    text = f"## {commands}".replace("\b", "")  # typer's sign for "do not wrap"
    return re.sub(r"^Examples:\n((?:\n|  .*\n)+)", _fenced, text, flags=re.M)


def _fenced(examples: re.Match[str]) -> str:
    lines = textwrap.dedent(examples[1]).strip()
    return f"Examples:\n\n```console\n{lines}\n```\n\n"


def _without_links_to_folders(page: Path, text: str) -> str:
    """A forge shows a folder; the site has nothing to show, so that the link becomes its text."""

    def instead(link: re.Match[str]) -> str:
        return link[1] if (page.parent / link[2]).is_dir() else link[0]

    return re.sub(r"\[([^\]]+)\]\(([^)#:]+)\)", instead, text)


def _as_list(
    _app: Any, _kind: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    """Make a list of the lines of a docstring that say ``name: what it is``, one to a line, and a
    list in it of the lines below a name that say ``value  what it means``."""
    done: list[str] = []
    margin = 0  # of the item's text; 0 outside a list
    for line in lines:
        line = re.sub(r"(?<!`)`([^`]+)`(?=\w)", r"`\1`\\ ", line)  # `KernelSpace`s
        item = re.match(rf"({_NAME}(?:, {_NAME})*):(?: (.+))?$", line)
        value = re.match(r" +(\S+) {2,}(\S.*)", line)
        if item and (margin or not done or not done[-1]):
            done += ["", f"- ``{item[1]}``: {item[2] or ''}"]
            margin = 2
        elif margin and value:
            done += ["", f"  - ``{value[1]}``: {value[2]}"]
            margin = 4
        elif margin and line:
            done.append(" " * margin + line.strip())
        else:
            done.append(line)
            margin = 0
    lines[:] = done


def _check(_app: Any) -> None:
    for name in undocumented():
        log.warning("%s is public and has no docstring", name)


def _complete(_app: Any, page: str, source: list[str]) -> None:
    """Add to a page what is generated for it, and make it fit the site."""
    source[0] = _without_links_to_folders(ROOT / page, source[0])
    if page == "README":
        source[0] += "\n" + _toctrees(source[0])
    elif page == NOTES:
        source[0] += "\n" + _notes(source[0])
    elif page == "docs/api":
        source[0] += "\n" + "\n".join(map(_reference, interface()))
    elif page == "docs/commands":
        source[0] += "\n" + _commands()


def _without_addresses(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, signature: Any, returned: Any
) -> tuple[Any, Any]:
    """A default that is a function is shown by its name: its address differs from run to run."""
    shown = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", signature) if signature else signature
    return shown, returned


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry to an extension."""
    app.connect("builder-inited", _check)
    app.connect("autodoc-process-docstring", _as_list)
    app.connect("autodoc-process-signature", _without_addresses)
    app.connect("source-read", _complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
