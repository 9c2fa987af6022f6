"""Element types of A, B and C as a caller may state them."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from tilewright.dtypes import named
from tilewright.errors import BadArgument

K = TypeVar("K", bound=type[Any])


def takes_dtype(kind: K) -> K:
    """A class decorator: problems of `kind` can be made with `dtype`, which means `dtype_a`, as on
    the command line. The other types follow from it. Raises `BadArgument` if both are given."""
    make = kind.__init__

    @wraps(make)
    def init(self: Any, *args: Any, dtype: Any = None, **said: Any) -> None:
        if dtype is not None:
            if "dtype_a" in said:
                raise BadArgument("say dtype or dtype_a, not both")
            said["dtype_a"] = dtype
        make(self, *args, **said)

    kind.__init__ = init
    return kind


def name_types(problem: Any) -> None:
    """Replace torch's and NumPy's element types by their names. Raises `BadArgument`."""
    for field in ("dtype_a", "dtype_b", "dtype_c", "dtype_acc"):
        said = getattr(problem, field)
        if not isinstance(said, str):
            object.__setattr__(problem, field, named(said))
