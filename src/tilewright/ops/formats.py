"""`Formats`: the sweep documents of CK Tile Engine that a family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch

Read = Callable[[Mapping[str, Any], Arch, Mapping[str, str] | None], tuple[Any, list[str]]]
"""From a sweep document, an architecture, and values of axes that the document leaves to its caller
(dtypes, layout) to a `KernelSpace`, and a note for each part of the document that has no
counterpart here. Raises `BadFile`, and `BadArgument` for the caller's values."""

Named = Callable[
    [str, Mapping[str, Any], Arch, Mapping[str, str] | None], tuple[Any, list[str]] | None
]


@dataclass(frozen=True, slots=True)
class Formats:
    """The sweep documents that a family reads.

    read: reads a document; None for a family that reads documents of its own axes only (see
        `tilewright.space_file.read_axes`).
    folders: names of CK Tile Engine's folders whose documents are this family's.
    unnamed: whether documents that name no family are this family's. True of exactly one family.
    by_name: reads another tool's documents, which it knows by their files' names; None for a file
        that is none of them. As `read`, with the file's name in front.
    """

    read: Read | None = None
    folders: tuple[str, ...] = ()
    unnamed: bool = False
    by_name: Named | None = None
