"""Importing this has the process killed, as by somebody else, each time."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
