"""The launch of an algorithm of a library: an engine of cuDNN, or a solver of MIOpen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ops.library_attention import Attention
from tilewright.ops.library_convolution import Convolution
from tilewright.ops.library_engine import MIB, said
from tilewright.ops.nouns import Argument, Launch, Pointer, Step, Temporary

WORKSPACE = "workspace"
"""The temporary that an algorithm may use."""


def launch(
    question: Convolution | Attention,
    words: str,
    arguments: Sequence[Argument],
    temporaries: Sequence[Temporary] = (),
    capturable: bool = True,
) -> Launch:
    """One step that the library computes by the algorithm that `words` say.

    question: what is computed. arguments: those of the step, without the workspace. temporaries:
    others than the workspace. capturable: see `Launch`.
    """
    of = said(words)
    room = of.workspace * MIB
    asked = replace(question, engine=of.engine, workspace=room)
    if room:
        arguments = (*arguments, Pointer(WORKSPACE))
        temporaries = (*temporaries, Temporary(WORKSPACE, (room,), "int8"))
    step = Step((1, 1, 1), tuple(arguments), theirs=asked)
    return Launch((step,), tuple(temporaries), capturable)
