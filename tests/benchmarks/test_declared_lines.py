"""How lines of code are counted."""

from __future__ import annotations

import declared_lines
from tilewright import ops

SAID = '''"""A docstring
of two lines."""

# a comment
import os  # and another


def f(x):
    """A docstring."""

    return (
        x,  # a line of code

        """a string that is
        a value""",
    )
'''


def test_lines_with_code_count():
    assert declared_lines.code_lines(SAID) == 7


def test_every_operation_and_every_file_is_counted_once():
    rows = [*declared_lines.rows()]
    assert {f"`{name}`" for name in ops.declared()} <= {name for name, *_ in rows}
    every = [file for file in declared_lines.ROOT.glob("*/**/*.py") if file.name != "__init__.py"]
    assert sum(page + kernels for _, page, kernels in rows) == sum(
        map(declared_lines.of_file, every)
    )


def test_the_table_takes_the_place_of_the_one_before():
    once = declared_lines.written("a\n<!-- lines -->\nold\n<!-- /lines -->\nb\n")
    assert "old" not in once
    assert declared_lines.written(once) == once
    assert once.startswith("a\n<!-- lines -->\n\n| operation |")
    assert once.endswith(" |\n\n<!-- /lines -->\nb\n")
