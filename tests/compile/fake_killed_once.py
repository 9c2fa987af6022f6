"""Importing this has the process killed, as by somebody else, the first time: the test has the
compilers' folders in one of its own."""

import os
import signal
from pathlib import Path

from fake_kernels import scale  # noqa: F401

try:
    Path(os.environ["TMPDIR"]).with_name("killed").touch(exist_ok=False)
except FileExistsError:
    pass
else:
    os.kill(os.getpid(), signal.SIGKILL)
