"""The modules of `benchmarks/` can be imported by the tests of this folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
