"""Engines of cuDNN and solvers of MIOpen, as data: what a kernel's name says of one, and the
tensors that the library is asked about.

What a step of a launch asks of the library is in `ops.library_convolution` and
`ops.library_attention`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument, shown
from tilewright.ops.library import CUDNN, LIBRARIES, MIOPEN, kind
from tilewright.verdict import YES, Verdict, no

MIB = 1 << 20

MOST_WORKSPACE = 1 << 30
"""Bytes of scratch memory that an engine may use at most."""

WORKSPACES = (0, *(1 << power for power in range((MOST_WORKSPACE // MIB).bit_length())))
"""MiB of scratch memory that an engine may use, as a name says them."""

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype: Tilewright's name. shape, strides: in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """What fixes one algorithm of cuDNN: an engine and the knobs that are turned from their usual
    places, in the library's own numbers.

    number: the engine's global index.
    knobs: (type, value) of each, in the order of the types.
    varies: whether the library notes that two runs may give other bits.
    """

    number: int
    knobs: tuple[tuple[int, int], ...] = ()
    varies: bool = False

    def __post_init__(self) -> None:
        types, values = [kind for kind, _ in self.knobs], [value for _, value in self.knobs]
        known = all(0 <= one <= _LARGEST for one in (self.number, *types))
        if types != sorted(set(types)) or not known or any(abs(one) > _LARGEST for one in values):
            raise BadArgument(f"{self} has knobs in no order, or a number that no name can say")

    @property
    def word(self) -> str:
        """All fields, as a kernel's name has them: ``38_k2-5_k14-3_varies``."""
        knobs = "".join(f"_k{kind}-{value}" for kind, value in self.knobs)
        return f"{self.number}{knobs}{'_varies' * self.varies}"

    @classmethod
    def of_word(cls, word: str) -> Engine:
        """The engine whose `word` this is. Raises `BadArgument`."""
        found = _WORD.fullmatch(word)
        if found is None:
            raise BadArgument(f"'{word}' is not an engine of cuDNN, such as 38_k2-5_k14-3")
        knobs = (tuple(map(int, one.split("-", 1))) for one in found["knobs"].split("_k")[1:])
        return cls(int(found["number"]), tuple(knobs), bool(found["varies"]))  # type: ignore[arg-type]


_NUMBER, _VALUE = r"(?:0|[1-9]\d{0,9})", r"(?:0|-?[1-9]\d{0,9})"
_WORD = re.compile(
    rf"(?P<number>{_NUMBER})(?P<knobs>(?:_k{_NUMBER}-{_VALUE})*)(?P<varies>_varies)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Solver:
    """What fixes one algorithm of MIOpen, as far as a caller can: a solver and the library's
    release. How a solver is tuned, it reads from the library's database, which is of a release too;
    a user can add to it.

    number: the library's number for a solution.
    release: the minor version of the library, and its patch.
    varies: whether two runs may give other bits: the library does not offer the solver where it is
        asked for deterministic ones.
    """

    number: int
    release: tuple[int, int]
    varies: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= one <= _LARGEST for one in (self.number, *self.release)):
            raise BadArgument(f"{self} has a number that no name can say")

    @property
    def word(self) -> str:
        """All fields, as a kernel's name has them: ``85_v4-0_varies``."""
        minor, patch = self.release
        return f"{self.number}_v{minor}-{patch}{'_varies' * self.varies}"

    @classmethod
    def of_word(cls, word: str) -> Solver:
        """The solver whose `word` this is. Raises `BadArgument`."""
        found = _SOLVER.fullmatch(word)
        if found is None:
            raise BadArgument(f"'{word}' is not a solver of MIOpen, such as 85_v4-0")
        release = int(found["minor"]), int(found["patch"])
        return cls(int(found["number"]), release, bool(found["varies"]))


_SOLVER = re.compile(
    rf"(?P<number>{_NUMBER})_v(?P<minor>{_NUMBER})-(?P<patch>{_NUMBER})(?P<varies>_varies)?",
    re.ASCII,
)

Fixed = Engine | Solver
"""What fixes an algorithm of a library."""

_FIXED: dict[str, type[Fixed]] = {CUDNN: Engine, MIOPEN: Solver}
_TITLES = {CUDNN: ("cuDNN", "NVIDIA"), MIOPEN: ("MIOpen", "AMD")}
"""The libraries' names and their vendors', for people."""


def title(library: str) -> str:
    """A library's name, for people. library: its kind, as ``cudnn``."""
    return _TITLES[library][0]


@dataclass(frozen=True, slots=True)
class Offered:
    """An algorithm that a library offers, and the bytes of scratch memory that it needs."""

    engine: Fixed
    workspace: int


# --- in a kernel's name -------------------------------------------------------------------------

PATTERN = r"(?P<engine>[a-z0-9]+_[a-z0-9_-]+_ws[0-9]+)"
"""What `words` looks like in a kernel's name: a regular expression."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the words of an algorithm say.

    library: with its major version. workspace: MiB of scratch memory that the algorithm may use.
    """

    library: str
    engine: Fixed
    workspace: int


def words(library_name: str, found: Offered) -> str:
    """The words of an algorithm that a library offers: ``cudnn9_38_k2-5_ws32``."""
    room = 0 if not found.workspace else 1 << (-(-found.workspace // MIB) - 1).bit_length()
    return f"{library_name}_{found.engine.word}_ws{room}"


@lru_cache(maxsize=4096)
def said(words: str, only: str = "") -> Said:
    """What the words of an algorithm say. Raises `BadArgument`.

    only: the kind of library that it must be of; ``""`` for any.
    """
    library, _, rest = words.partition("_")
    word, _, room = rest.rpartition("_ws")
    fixed = _FIXED.get(kind(library)) if only in ("", kind(library)) else None
    if fixed is None or room not in map(str, WORKSPACES):
        raise BadArgument(f"{shown(words, 300)} is not an engine such as cudnn9_38_k2-5_ws32")
    return Said(library, fixed.of_word(word), int(room))


def repeats(words: str) -> Verdict:
    """Whether two runs of an algorithm give the same bits."""
    of = said(words)
    if of.engine.varies:
        which = title(kind(of.library))
        return no("reduction", f"{which} notes that this engine's sums do not repeat bit for bit")
    return YES


def foreign(library: str, arch: Arch) -> str | None:
    """Why an architecture has no library of a kind; None if it has."""
    if library not in LIBRARIES[arch.backend]:
        name, vendor = _TITLES[library]
        return f"{name} is {vendor}'s, and {arch.name} is not"
    return None
