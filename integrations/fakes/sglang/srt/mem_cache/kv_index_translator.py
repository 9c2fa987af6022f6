"""Places in pools that several kinds of layers share."""

from __future__ import annotations


class KVIndexTranslator:
    @property
    def is_translating(self) -> bool:
        return False
