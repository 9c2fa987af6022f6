"""Logging."""

from __future__ import annotations

import logging


class _VllmLogger(logging.Logger):
    def warning_once(self, msg: str, *args: object) -> None:
        self.warning(msg, *args)

    def debug_once(self, msg: str, *args: object) -> None:
        self.debug(msg, *args)

    def info_once(self, msg: str, *args: object) -> None:
        self.info(msg, *args)


def init_logger(name: str) -> _VllmLogger:
    logger = _VllmLogger(name)
    logger.parent = logging.getLogger("vllm")
    return logger
