"""What arguments of a server may be."""

from __future__ import annotations

ATTENTION_BACKEND_CHOICES = ["triton"]
add_attention_backend_choices = ATTENTION_BACKEND_CHOICES.extend
