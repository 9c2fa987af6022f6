"""A registry from JSON: kernels that were chosen elsewhere, here to dispatch from.

    python examples/11_registry_in.py [FILE]

Without a file it reads ``kernels.json`` beside it, which `Registry.save` wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tilewright as tw
from common import place, target
from tilewright.verify import verify

given = sys.argv[1:]
path = Path(given[0]) if given else Path(__file__).with_name("kernels.json")
registry = tw.Registry.load(path)
print(f"{path.name}: registry '{registry.name}' has {len(registry)} kernels")

dispatcher = tw.Dispatcher(registry, device=target())
for size in ((256, 64, 128), (15, 33, 77)):
    problem = tw.GemmProblem(*size)
    print(dispatcher.explain(problem))
    if dispatcher.is_supported(problem):
        assert verify(dispatcher, problem, device=place(), seed=3).ok

wrong = registry.to_json().replace('"tile_m": 64', '"tile_m": 32')
try:
    tw.Registry.from_json(wrong, "edited.json")
except tw.errors.BadFile as error:
    print(f"an edited file is refused: {error}")
