"""Models of Hugging Face transformers with Tilewright's attention and mixtures of experts.

    import tilewright.transformers

    tilewright.transformers.register()
    model = AutoModel.from_config(config, attn_implementation="tilewright")
    model.set_attn_implementation("tilewright")  # or of a model that is there

`register` tells transformers of the name ``tilewright``; a model that does not ask for it is as
before. Importing this module neither registers anything nor imports transformers.
"""

from __future__ import annotations

from tilewright.errors import BadArgument

NAME = "tilewright"
"""What ``attn_implementation`` and ``experts_implementation`` are called."""

__all__ = ["NAME", "register"]


def register() -> None:
    """Register attention, its masks and experts with transformers, under the name ``tilewright``.

    A second call changes nothing. Raises `BadArgument` if transformers is not installed, or if
    its interfaces are not those that this version of Tilewright was written for.
    """
    try:
        import transformers
    except ImportError as error:
        raise BadArgument(
            f"transformers cannot be imported ({error}); pip install 'transformers>=5.20'"
        ) from error
    try:
        from tilewright.transformers.interfaces import interfaces

        found = interfaces()
    except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadArgument(
            f"transformers {transformers.__version__} has other interfaces than those of 5.20 to "
            f"5.24, which Tilewright registers with; install one of these ({error})"
        ) from error
    for interface, function in found:
        interface.register(NAME, function)
