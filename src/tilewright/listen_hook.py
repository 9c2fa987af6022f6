"""What torch calls when it has been imported, in whatever program (entry point ``torch.backends``).

It does nothing, and imports nothing more, unless the environment asks to listen.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tilewright import variables

VARIABLE = variables.LISTEN
"""The environment variable that names the file to listen into."""


_begun = False


def start() -> None:
    """Listen to the whole process if the environment says so. Raises `BadArgument`.

    Torch calls it for each installed package that states it, of which there may be two: a checkout
    beside an older installation. The second call does nothing.
    """
    global _begun
    path = os.environ.get(VARIABLE)
    if not path or _begun or _own():
        return
    from tilewright.errors import BadArgument
    from tilewright.torch.listening import listen_until_exit

    # Torch imports this last. It wraps kernels too, which have to be there first.
    with suppress(ImportError):
        import torch._native  # noqa: F401
    try:
        listen_until_exit(path)
    except BadArgument as error:
        raise BadArgument(f"{VARIABLE}: {error}") from None
    _begun = True


def _own() -> bool:
    """Whether this is Tilewright's command or a child of Tilewright: what they measure is no
    model's."""
    return "tilewright.cli" in sys.modules or bool(os.environ.get(variables.PARENT))
