"""What torch calls when it has been imported, in whatever program (entry point ``torch.backends``).

It does nothing, and imports nothing more, unless the environment asks to listen.
"""

from __future__ import annotations

import os

VARIABLE = "TILEWRIGHT_LISTEN"
"""The environment variable that names the file to listen into."""


def start() -> None:
    """Listen to the whole process if the environment says so. Raises `BadArgument`."""
    path = os.environ.get(VARIABLE)
    if path:
        from tilewright.errors import BadArgument
        from tilewright.torch.listening import listen_until_exit

        try:
            listen_until_exit(path)
        except BadArgument as error:
            raise BadArgument(f"{VARIABLE}: {error}") from None
