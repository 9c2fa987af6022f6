"""Exit codes without an error type."""

from __future__ import annotations

INTERRUPTED = 130
"""The user pressed Ctrl-C: 128 plus the number of SIGINT, as in shells."""
BROKEN_PIPE = 141
"""The reader of the output has gone: 128 plus the number of SIGPIPE."""
