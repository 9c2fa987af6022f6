"""The platform: an NVIDIA GPU, as far as anybody asks."""

from __future__ import annotations

from vllm.platforms.interface import Platform

current_platform = Platform()
