"""Every instruction that kernels of this project were seen to compile to is known.

`instructions.json` has a line for each generation, mnemonic and form (kinds of operands, modifiers,
flags) of a census: kernels of the default spaces, of the lists for tuning and of other tests'
cases, for each architecture, those that differ most from others first; of cdna1, 33 kernels.

"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tilewright.emulate import isa as isa
from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.registry import Context, executor
from tilewright.listing.target import CDNA, GENERATIONS, Target
from tilewright.listing.text import instruction

SEEN: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("instructions.json").read_text()
)["instructions"]


class Anything:
    """Stands for memory: nothing is executed here."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


def test_all_generations_were_seen():
    assert {*SEEN} == {*GENERATIONS.values()}


@pytest.mark.parametrize("name", GENERATIONS)
def test_is_known(name):
    generation = GENERATIONS[name]
    target = Target(name, generation, 64 if generation in CDNA else 32)
    memory: Any = Anything()
    for mnemonic, lines in SEEN[generation].items():
        for line in lines:
            context = Context(target, Findings(), defaultdict(int), memory, memory)
            assert executor(instruction(line), context) is not None, (mnemonic, line)
