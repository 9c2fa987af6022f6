"""Problems as MIOpenDriver writes them.

    convbf16 -n 32 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -g 1 -F 1

A switch that a line leaves out has the driver's default, also sizes (-n 100, -c 3, -H 32 …). Each
array is channels-first unless the line says its layout. ``-z same`` and ``-z valid`` replace the
padding where the driver does so: without -m trans, and without dilation or with filters of one tap.
The driver computes a bias apart from the convolution in gradients; there it says nothing. The words
are those of `words.parse`. Read from driver/conv_driver.hpp in ROCm/MIOpen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright import checks
from tilewright.errors import BadArgument, nearest, shown
from tilewright.ops.foreign import Refused

DTYPES = {
    "conv": "fp32", "convfp16": "fp16", "convbfp16": "bf16", "convbf16": "bf16", "convint8": "int8",
    "convfp8": "fp8", "convbfp8": "bf8",
}  # fmt: skip
"""Its commands, and the dtype that each has."""

_LONG = {
    "batchsize": "n", "in_channels": "c", "in_d": "!", "in_h": "H", "in_w": "W",
    "out_channels": "k", "fil_d": "@", "fil_h": "y", "fil_w": "x", "pad_d": "$", "pad_h": "p",
    "pad_w": "q", "conv_stride_d": "#", "conv_stride_h": "u", "conv_stride_w": "v",
    "dilation_d": "^", "dilation_h": "l", "dilation_w": "j", "group_count": "g", "forw": "F",
    "mode": "m", "spatial_dim": "_", "in_layout": "I", "out_layout": "O", "fil_layout": "f",
    "time": "t", "iter": "i", "verify": "V", "wall": "w", "search": "s", "printconv": "P",
    "pad_val": "r", "pad_mode": "z", "trans_output_pad_d": "%", "trans_output_pad_h": "Y",
    "trans_output_pad_w": "X", "bias": "b", "tensor_vect": "Z", "vector_length": "L",
    "in_cast_type": "U", "out_cast_type": "T", "wei_cast_type": "R", "solution": "S",
    "gpualloc": "G", "verification_cache": "C", "dump_output": "o", "in_data": "d",
    "weights": "e", "in_bias": "a", "dout_data": "D",
}  # fmt: skip
"""Its switches' long names, and the letters that stand for them."""

_SIZES = {
    "spatial": ("!HW", "32"), "filter": ("@yx", "3"), "pad": ("$pq", "0"), "stride": ("#uv", "1"),
    "dilation": ("^lj", "1"), "output_pad": ("%YX", "0"),
}  # fmt: skip
"""Switches of depth, height and width, and their default."""

_COUNTS = {"n": ("n", "100"), "c": ("c", "3"), "k": ("k", "32"), "groups": ("g", "1")}

_DIRECTIONS = {"1": "forward", "2": "data", "4": "weights"}
_RUN = "tiVwsPSGCodeaD"
"""Switches that say how it runs or where values come from, and nothing of the problem."""

_ONLY = {
    "r": ("0", "padding is of zeros here"),
    "Z": ("0", "arrays have no vectors of channels as a dimension here"),
    "L": ("1", "arrays have no vectors of channels as a dimension here"),
    **dict.fromkeys("UTR", ("-1", "operands are converted before a call here")),
}
"""Switches with one value that has a counterpart, and why others have none."""

_LAYOUTS = {"NCHW": True, "NCDHW": True, "NHWC": False, "NDHWC": False}
"""Whether a layout is channels-first."""

_FIRST = "channels_first"


def read(line: str) -> dict[str, str]:
    """The words of a line. A line without -F is read as forward. Raises `BadArgument`."""
    driver, said = _split(line)
    count = checks.parse_whole("spatial_dim", said.pop("_", "2"))
    if count not in (2, 3):
        raise BadArgument(f"miopen: {count} spatial dimensions are not 2 or 3")
    words = {"dtype": DTYPES[driver]}
    for word, (letter, default) in _COUNTS.items():
        words[word] = said.pop(letter, default)
    if words["groups"] == "0":
        words["groups"] = "1"
    sizes: dict[str, list[str]] = {}
    for word, (letters, default) in _SIZES.items():
        sizes[word] = [said.pop(letter, default) for letter in letters[3 - count :]]
        said.pop(letters[0], None)  # of a depth that is not there
    direction = said.pop("F", "1")
    if direction not in _DIRECTIONS:
        raise BadArgument(
            f"miopen: -F {direction} is several directions; say 1, 2 or 4 (forward, data, weights),"
            " or put the line in a file of problems, whose lines may state several"
        )
    words["direction"] = _DIRECTIONS[direction]
    mode = said.pop("m", "conv")
    if mode not in ("conv", "trans"):
        raise BadArgument(f"miopen: mode {shown(mode)} is neither conv nor trans")
    output_pad = sizes.pop("output_pad")
    padding = said.pop("z", "default")
    if padding not in ("default", "same", "valid"):
        raise BadArgument(f"miopen: -z {shown(padding)} is not one of default, same, valid")
    if mode == "trans":
        words |= {"transposed": "1", "output_pad": "x".join(output_pad)}
    elif padding != "default" and ({*sizes["dilation"]} == {"1"} or {*sizes["filter"]} == {"1"}):
        sizes["pad"] = _same(sizes) if padding == "same" else ["0"] * count
    words |= {word: "x".join(each) for word, each in sizes.items()}
    words |= _bias(said.pop("b", "0"), words) | _layouts(said, mode == "trans")
    for letter in _RUN:
        said.pop(letter, None)
    for letter, (only, why) in _ONLY.items():
        if said.pop(letter, only) != only:
            raise BadArgument(f"miopen: -{letter} is {only} in a line with a counterpart: {why}")
    if said:
        raise BadArgument(f"miopen: -{min(said)} is not known to say a problem")
    return words


def lines(folder: str) -> Callable[[str], Iterator[str | Refused]]:
    """Reads lines of a file as lines of one direction. A line without -F is of all three."""
    return _each


def _each(line: str) -> Iterator[str | Refused]:
    try:
        said = _split(line)[1]
        bits = checks.parse_whole("miopen: -F", said.get("F", "0"), 0, 7) or 7
    except BadArgument as error:
        yield Refused(str(error))
        return
    yield from (f"{line} -F {word}" for word in _DIRECTIONS if bits & int(word))


def _split(line: str) -> tuple[str, dict[str, str]]:
    """The command, and the value of each switch: the last that is given counts."""
    driver, *rest = line.split() or [""]
    if driver.rpartition("/")[2] == "MIOpenDriver":
        driver, *rest = rest or [""]
    if driver not in DTYPES:
        raise BadArgument(
            f"miopen: {shown(driver)} is not one of {', '.join(DTYPES)}{nearest(driver, DTYPES)}"
        )
    found: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        name, equal, value = word.partition("=")
        letter = _LONG.get(name[2:], "") if name.startswith("--") else name[1:]
        if not name.startswith("-") or len(letter) != 1:
            raise BadArgument(f"miopen: {shown(word)} is no switch")
        given = value if equal else next(words, None)
        if given is None:
            raise BadArgument(f"miopen: {name} has no value")
        found[letter] = given
    return driver, found


def _same(sizes: dict[str, list[str]]) -> list[str]:
    """Padding for a result of ⌈size / stride⌉, halved towards zero as the driver does."""
    found = []
    for texts in zip(sizes["spatial"], sizes["filter"], sizes["stride"], strict=True):
        size, taps, stride = (checks.parse_whole("miopen: a size", text) for text in texts)
        if not stride:
            raise BadArgument("miopen: a stride of 0 has no padding of -z same")
        found.append(str(max(taps - (size % stride or stride), 0) // 2))
    return found


def _bias(text: str, words: dict[str, str]) -> dict[str, str]:
    if text in ("", "0") or words["direction"] != "forward":
        return {}
    if words["dtype"] == "int8":
        raise BadArgument("miopen: -b of convint8 adds to integers; here a sum with a bias is fp32")
    return {"epilogue": "bias"}


def _layouts(said: dict[str, str], transposed: bool) -> dict[str, str]:
    """The layout of each array. What a transposed convolution reads is y of the problem."""
    found = {}
    for letter, array in zip("IfO", "ywx" if transposed else "xwy", strict=True):
        layout = said.pop(letter, "NCHW").upper()
        if layout not in _LAYOUTS:
            raise BadArgument(f"miopen: layout {shown(layout)} is not one of {', '.join(_LAYOUTS)}")
        if _LAYOUTS[layout]:
            found[f"{array}_layout"] = _FIRST
    return {"layout": _FIRST} if len(found) == len("xwy") else found
