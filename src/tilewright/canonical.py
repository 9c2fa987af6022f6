"""JSON with one spelling, and digests of it: equal values give equal bytes on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> bytes:
    """`value` as JSON with sorted keys, no spaces, ASCII only, and a newline at the end."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text.encode() + b"\n"


def sha256(data: bytes) -> str:
    """The SHA-256 digest of `data` in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
