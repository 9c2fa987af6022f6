"""Importing this takes for ever."""

import time

time.sleep(3600)
