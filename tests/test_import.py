"""What importing costs, and which way the arrows point."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tilewright
from source_tree import (
    ROOT,
    TABLE_TITLE,
    breaches,
    circles,
    graph,
    imports,
    room_circles,
    rooms,
    sources,
    words_said,
)


def test_import_is_quick_and_light():
    script = (
        "import time; t = time.process_time(); import tilewright, sys;"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules);"
        "print(time.process_time() - t)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 0.1  # seconds of processor time: it takes 0.01


def test_every_public_name_is_there():
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    assert set(tilewright.__all__) <= set(dir(tilewright))
    assert not hasattr(tilewright, "no_such_thing")


# --- arrows and circles -----------------------------------------------------------------------

ROOMS = rooms((ROOT.parents[1] / "docs/architecture.md").read_text())
TREE = sources()


def with_lines(module: str, *lines: str) -> dict[str, str]:
    """The package with these lines at the end of a module."""
    return {**TREE, module: "\n".join([TREE.get(module, ""), *lines])}


def test_no_module_imports_another_in_a_circle():
    assert circles(graph(imports(TREE))) == []
    assert room_circles(TREE, ROOMS) == []


def test_no_benchmark_imports_another_in_a_circle():
    found = imports(sources(ROOT.parents[1] / "benchmarks"), package="")
    assert {("rivals", "gpu_bench"), ("one_case", "on_gpu")} <= {(one[0], one[1]) for one in found}
    assert circles(graph(found)) == []


def test_every_module_imports_what_the_table_allows():
    """The table of docs/architecture.md."""
    assert breaches(TREE, ROOMS) == []


@pytest.mark.parametrize(
    ("module", "line", "imported"),
    [
        ("ops", "from tilewright import dispatch", "dispatch"),
        ("ops.nouns", "import tilewright.dispatch", "dispatch"),
        ("ops.protocols", "def f():\n    from tilewright.compile.store import Store",
         "compile.store"),
        ("ops.gemm.legality", "from ... import select", "select"),
        ("ops.gemm", "from ...select.constraints import Constraints", "select.constraints"),
        ("ops.device", "from ..gemm import FAMILY", "ops.gemm"),
        ("space", "from tilewright.registry import Registry", "registry"),
        ("registry", "from tilewright import bundle", "bundle"),
        ("arrays", "import importlib\nimportlib.import_module('tilewright.plan')", "plan"),
        ("arch.load", "__import__('tilewright.space')",
         "space"),
        ("compile.pool", "if TYPE_CHECKING:\n    from tilewright.tables.row import Row",
         "tables.row"),
        ("tables.row", "import_module('..registry', 'tilewright.tables')", "registry"),
        ("measure.sweep", "from tilewright.tune import tuner", "tune.tuner"),
        ("select", "from tilewright.ops.gemm import GemmProblem", "ops.gemm"),
        ("verify", "import tilewright", ""),
        ("verify", "from tilewright import Table", ""),
        ("errors", "from tilewright.arch import arch", "arch"),
    ],
)  # fmt: skip
def test_an_import_against_the_arrows_is_found(module, line, imported):
    found = breaches(with_lines(module, line), ROOMS)
    assert any(said.startswith(f"{module}:") and f" imports {imported}:" in said for said in found)


def test_a_module_without_a_row_is_found():
    assert "extra.py has no row in the table" in breaches({**TREE, "extra": ""}, ROOMS)
    assert "gone is in the table only" in breaches(TREE, {**ROOMS, "gone": set()})


def test_the_table_has_no_arrow_upwards():
    upwards = f"{TABLE_TITLE}\n|---|---|\n| `a` | `b` |\n| `b` | nothing |\n"
    with pytest.raises(AssertionError, match="below them"):
        rooms(upwards)


@pytest.mark.parametrize(
    ("module", "line", "group"),
    [
        ("arch.load", "def f():\n    from tilewright.arch import known", "arch.known"),
        ("measure.devices", "if TYPE_CHECKING:\n    from .cluster import places",
         "measure.cluster"),
        ("errors", "from tilewright import checks", "checks"),
        ("verdict", "import importlib\nimportlib.import_module('tilewright.plan')", "plan"),
    ],
)  # fmt: skip
def test_a_circle_is_found(module, line, group):
    found = circles(graph(imports(with_lines(module, line))))
    assert any({module, group} <= set(one) for one in found)


def test_families_that_import_each_other_are_found():
    """No module of gemm's would be in a circle."""
    tree = with_lines("ops.gemm.rows", "from tilewright.ops.grouped_gemm import reference")
    assert ["ops.gemm", "ops.grouped_gemm"] in room_circles(tree, ROOMS)


# --- words of families ------------------------------------------------------------------------

OTHER_MEANING = {
    "arrays": {"layout"},  # a torch tensor's
    "cli.groups": {"deterministic"},  # the constraint
    "default": {"deterministic"},  # the constraint
    "emulate.counts": {"accumulate"},  # itertools'
    "errors": {"n"},  # difflib's
    "jax": {"attention", "conv", "gemm"},  # what it gives of jax.functions
    "listing.hazard_rules": {"c"},  # an operand of a matrix instruction
    "measure.designs": {"pool"},  # kernels to choose from
    "ops.device.epilogue": {"m", "n"},  # dimensions of an output tile, for kernels of any family
    "ops.device.gluon_ring": {"split_k"},
    "ops.device.gluon_store": {"c", "layout", "m", "n"},  # a matrix; a tile's in registers
    "ops.device.schedule": {"m", "n", "split_k"},
    "ops.library": {"n"},  # the number of an algorithm, in names
    "ops.library_attention": {"attention", "k"},  # what the library computes, and a tensor of it
    "ops.library_engine": {"reduction"},  # a rule's name
    "ops.epilogues": {"m", "n"},  # kinds of operands, for kernels of any family
    "ops.recording": {"spread"},  # a vector over a matrix
    "ops.tile_sharing": {"reduction", "scheduler"},  # what it asks of any family's config
    "runtime.bound": {"layout"},  # a tensor map's
    "runtime.cuda": {"block_size"},  # of a tensor map, in elements
    "runtime.cudnn_graphs": {"dilation", "k"},  # the library's
    "runtime.miopen": {"dilation"},  # the library's
    "select.constraints": {"deterministic"},  # the constraint
    "tables.aiter": {"attention"},  # linear attention
    "tables.packed": {"accumulate"},  # itertools'
    "torch": {"attention", "conv"},  # torch's functions
}
"""Words that mean something else in these modules than in the families."""

LEFT: dict[str, set[str]] = {}
"""Words of families that still stand outside them. This only shrinks."""


def test_nothing_outside_a_family_says_its_words():
    """The plug: a family is a folder, and the rest of the code finds it by looking."""
    known = {(m, w) for said in (OTHER_MEANING, LEFT) for m, words in said.items() for w in words}
    found = {(module, word) for module, word, _ in words_said(TREE)}
    new = sorted(f"{m}:{line} says {w}" for m, w, line in words_said(TREE) if (m, w) not in known)
    assert new == []
    assert sorted(known - found) == [], "take these out of the lists"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("def f(p):\n    return p.lda", "lda"),
        ("getattr(p, 'tile_m')", "tile_m"),
        ("replace(p, k=3)", "k"),
        ("FIELDS = ['epilogue']", "epilogue"),
        ("say(f'for m={p}')", "m"),
        ("'tilewright explain gemm x'", "gemm"),
        ("if name.startswith('grouped_gemm_'): pass", "grouped_gemm"),
        ("HELP = ('a docstring is prose', 'gemm')", "gemm"),
    ],
)
def test_a_word_of_a_family_is_found(line, word):
    module = "measure.sweep"
    assert (module, word) not in {(m, w) for m, w, _ in words_said(TREE)}
    assert (module, word) in {(m, w) for m, w, _ in words_said(with_lines(module, line))}


def test_docstrings_and_families_may_say_it():
    prose = with_lines("measure.station", "def f():\n    'gemm, with m=3'")
    inside = with_lines("ops.gemm.rows", "p.lda")
    for tree in (prose, inside):
        assert [*words_said(tree)] == [*words_said(TREE)]
