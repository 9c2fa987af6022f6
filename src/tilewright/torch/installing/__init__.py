"""Kernels of ours under an unchanged torch program: `install`, `uninstall`, `installed`."""

from __future__ import annotations

from tilewright.torch.installing.flash import register_flash_attention
from tilewright.torch.installing.install import Installed, install, installed, uninstall

__all__ = ["Installed", "install", "installed", "register_flash_attention", "uninstall"]
