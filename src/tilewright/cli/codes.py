"""Exit codes that no error type has."""

from __future__ import annotations

INTERRUPTED = 130
"""The user pressed Ctrl-C: 128 and SIGINT, as shells say it."""
BROKEN_PIPE = 141
"""The reader of the output has gone: 128 and SIGPIPE."""
