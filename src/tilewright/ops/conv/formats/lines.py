"""Lines of other libraries' drivers that state a problem, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ops.conv.formats import ck, miopen, onednn

READERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "miopen": miopen.read,
    "onednn": onednn.read,
    "ck": ck.profiler,
}
"""By the word whose text is such a line: the words of `words.parse` that it states."""
