"""Command lines of oneDNN's benchdnn: options, and problems that they apply to.

    --matmul --dt=f32,bf16 --wtag=ab,ba 30x40:40x50      four problems
    --dir=BWD_D mb1ic8ih5oc8oh5kh3                       one; later ones are BWD_D too

An option holds for every problem behind it, also on later lines of a file, until ``--reset`` or
another value. An option with several values, separated by commas, makes a problem of each. What is
left of a line here is a line of one problem, which families read (`one`). Read from
tests/benchdnn/doc in uxlfoundation/oneDNN.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright import checks
from tilewright.errors import BadArgument, shown
from tilewright.ops.foreign import Driver, Refused

DRIVERS = (
    "conv", "deconv", "matmul", "ip", "pool", "binary", "bnorm", "brgemm", "concat", "eltwise",
    "gnorm", "graph", "lnorm", "lrn", "prelu", "reduction", "reorder", "resampling", "rnn", "sdpa",
    "shuffle", "softmax", "sum", "zeropad",
)  # fmt: skip
"""Its drivers; each has a folder of this name."""

_RUN = frozenset((
    "allow-enum-tags-only", "alg", "attr-acc-mode", "attr-deterministic", "attr-scratchpad",
    "canonical", "check-ref-impl", "cold-cache", "cpu-isa-hints", "ctx-exe", "ctx-init", "engine",
    "execution-mode", "fast-ref", "fix-times-per-prb", "impl", "max-ms-per-prb", "mem-check",
    "memory-kind", "mode", "mode-modifier", "num-streams", "perf-template", "repeats-per-prb",
    "runtime_dims_masks", "skip-impl", "start", "stream-kind", "summary", "verbose",
))  # fmt: skip
"""Options that say how it runs, and nothing of the problem: our kernels take sizes at run time
anyway."""

_WHOLE = ("batch", "match")
"""Options whose value may have commas of its own."""

MOST = 4096
"""Most problems of one description: the product of the numbers of values."""

MOST_DIMS = 12
"""Most dimensions of an array, as oneDNN has it."""

_MATMUL = re.compile(r"\d+(x\d+)+:", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stated:
    """One problem: the driver, its options with one value each, and its sizes."""

    driver: str
    options: tuple[tuple[str, str], ...]
    sizes: str

    @property
    def line(self) -> str:
        """The line that states it alone."""
        options = (f"--{name}={value}" for name, value in self.options)
        return " ".join((f"--{self.driver}", *options, self.sizes))


@dataclass(slots=True)
class Reader:
    """Reads the lines of a file in order. driver: where no line names one; "" goes by the sizes,
    whose form a convolution and a deconvolution share: they are a convolution's."""

    driver: str = ""
    options: dict[str, list[str]] = field(default_factory=dict)

    def read(self, line: str) -> Iterator[Stated | str]:
        """The problems of a line, and sentences on parts of it that state none."""
        for word in line.split():
            if word.startswith("#"):
                return
            if not word.startswith("-"):
                yield from self._each(word)
            elif why := self._option(word):
                yield why

    def _option(self, word: str) -> str:
        """Keep an option; a sentence if it can not be kept."""
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("-v") or name in _RUN:
            return ""
        if not equals:
            if name in DRIVERS:
                self.driver = name
            if name in DRIVERS or name == "reset":
                self.options = {}
                return ""
            return f"onednn: {shown(word)} is no option with a value"
        if name == "batch":
            return f"onednn: --batch names a file of problems, {shown(value)}; read that file"
        self.options[name] = [value] if name in _WHOLE else value.split(",")
        return ""

    def _each(self, sizes: str) -> Iterator[Stated | str]:
        if math.prod(map(len, self.options.values())) > MOST:
            yield f"onednn: {shown(sizes)} has options with more than {MOST} combinations"
            return
        driver = self.driver or ("matmul" if _MATMUL.match(sizes) else "conv")
        for values in itertools.product(*self.options.values()):
            yield Stated(driver, tuple(zip(self.options, values, strict=True)), sizes)


def driver(names: Sequence[str], read: Callable[[str], dict[str, str]]) -> Driver:
    """How a family reads the lines of these drivers."""
    return Driver("onednn", "benchdnn", tuple(f"--{name}" for name in names), read, lines, True)


def lines(folder: str) -> Callable[[str], Iterator[str | Refused]]:
    """Reads the lines of a file in order, as lines of one problem. folder: the name of the file's
    folder, which may be a driver's."""
    reader = Reader(folder if folder in DRIVERS else "")

    def each(line: str) -> Iterator[str | Refused]:
        for found in reader.read(line):
            yield Refused(found) if isinstance(found, str) else found.line

    return each


def one(line: str, drivers: Sequence[str]) -> Stated:
    """The only problem of a line. Raises `BadArgument` for a line of none or several, and of
    another driver than `drivers`, of which the first is that of a line that names none."""
    found = [*itertools.islice(Reader(drivers[0]).read(line), 2)]
    for each in found:
        if isinstance(each, str):
            raise BadArgument(each)
        if each.driver not in drivers:
            raise BadArgument(
                f"onednn: --{each.driver} is another operation than {', '.join(drivers)}"
            )
    if not found or not isinstance(found[0], Stated):
        raise BadArgument(f"onednn: {shown(line)} states no problem")
    if len(found) > 1:
        raise BadArgument(
            f"onednn: {shown(line)} states several problems; give one, or put the line in a file of"
            " problems, whose lines may state several"
        )
    return found[0]


def dtypes(text: str) -> tuple[str, str, str]:
    """The dtypes of source, weights and destination of ``--dt``. Raises `BadArgument`."""
    parts = text.split(":")
    if len(parts) == 1:
        parts *= 3
    if len(parts) != 3:
        raise BadArgument(f"onednn: --dt={shown(text)} is not one dtype, or three")
    for part in parts:
        if part not in _DTYPES:
            raise BadArgument(
                f"onednn: {shown(part)} is no dtype of operands here; integers are signed"
            )
    source, weights, destination = (_DTYPES[part] for part in parts)
    return source, weights, destination


_DTYPES = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "s8": "int8", "s32": "int32", "s4": "int4",
    "f8_e4m3": "e4m3fn", "f8_e5m2": "e5m2", "f4_e2m1": "e2m1", "e8m0": "e8m0",
}  # fmt: skip


def scale_dtype(text: str) -> str:
    """The dtype of scales; fp32 where the text is empty. Raises `BadArgument`."""
    if text and text not in _DTYPES:
        raise BadArgument(f"onednn: scales of {shown(text)} have no counterpart here")
    return _DTYPES[text or "f32"]


# --- layouts ------------------------------------------------------------------------------------


def by(text: str, what: str) -> tuple[int, ...]:
    """``3x4x5``. Raises `BadArgument`."""
    parts = text.split("x")
    if len(parts) > MOST_DIMS:
        raise BadArgument(f"onednn: {what} of {len(parts)} dimensions, over {MOST_DIMS}")
    return tuple(checks.parse_whole(f"onednn: {what}", part) for part in parts)


def strides(
    options: dict[str, str], place: int, sizes: Sequence[int], grouped: bool = False
) -> tuple[int, ...] | None:
    """The strides of an array, from ``--strides`` or its tag; None for a tag ``any``, or none.

    place: 0, 1 or 2: source, weights, destination. sizes: of its dimensions, in oneDNN's order.
    grouped: whether the first of the weights' dimensions is the groups'. Raises `BadArgument`.
    """
    given = options.get("strides", "").split(":")
    if len(given) not in (1, 3) or (len(given) == 1 and given[0]):
        raise BadArgument("onednn: --strides has three parts: source, weights, destination")
    own = given[place] if len(given) == 3 else ""
    name = ("stag", "wtag", "dtag")[place]
    tag = options.get(name, "")
    if own:
        found = by(own, "--strides")
        if len(found) != len(sizes):
            raise BadArgument(f"onednn: --strides={shown(own)} has not {len(sizes)} numbers")
        return found
    if tag in ("", "any"):
        return None
    order = _order(tag, len(sizes), grouped)
    if order is None:
        raise BadArgument(
            f"onednn: --{name}={shown(tag)} is no order of {len(sizes)} dimensions; layouts in "
            "blocks have no counterpart here"
        )
    result, step = [0] * len(sizes), 1
    for dim in reversed(order):
        result[dim] = step
        step *= max(1, sizes[dim])
    return tuple(result)


def _order(tag: str, rank: int, grouped: bool) -> list[int] | None:
    """The dimensions from the outermost to the innermost; None for a tag that is no such order."""
    letters = "abcdefghijkl"[:rank]
    if "n" in tag or "o" in tag:  # names of dimensions in the place of letters
        first = "nc" if "n" in tag else "goi" if grouped else "oi"
        names = first + "dhw"[3 - (rank - len(first)) :]
        if len(names) != rank or any(one not in names for one in tag):
            return None
        tag = "".join(letters[names.index(one)] for one in tag)
    rest = [one for one in letters if one not in tag] if "x" in tag else []
    tag = tag.replace("x", "".join(rest), 1)
    return [letters.index(one) for one in tag] if sorted(tag) == [*letters] else None
