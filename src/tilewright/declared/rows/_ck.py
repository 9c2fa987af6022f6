"""CK Tile's examples of norms and of rounding rows: 02_layernorm2d, 10_rmsnorm2d,
11_add_rmsnorm2d_rdquant, 12_smoothquant and 14_moe_smoothquant."""

from __future__ import annotations

from tilewright.declared._ck import Program, Said, contiguous, driver, only, stride

SUM = "the sum with the residual is an output here"
SCALES = "scales are fp32 here"


def _norm(said: Said) -> dict[str, str]:
    """A norm with a weight, perhaps of a sum, perhaps rounded to 8 bits."""
    n, out = said["n"], said["prec_o"]
    contiguous(said, n, "stride", "y_stride", "yr_stride")
    only(said, SUM, fadd=("0", "1"))
    only(said, SCALES, prec_sy=("auto", "fp32"))
    only(said, "there are 0, 1 and 2", fquant=("0", "1", "2"))
    found = {"rows": said["m"], "columns": n, "dtype": said["prec_i"], "has_w": "1"}
    found |= stride(said, "x_stride", n)
    if said["fadd"] == "1":
        found["has_residual"] = "1"
        found |= stride(said, "xr_stride", n, "residual_stride")
    if out != "auto":
        found["out_dtype"] = out
    if said["fquant"] != "0":
        found["quant"] = "row"
    return found | ({"has_smooth": "1"} if said["fquant"] == "1" else {})


def _layer_norm(said: Said) -> dict[str, str]:
    only(said, SCALES, prec_sm=("auto", "fp32"), prec_sx=("auto", "fp32"))
    only(said, "a bias before the norm is a residual here", xbias=("0",))
    return {**_norm(said), "has_b": "1", "statistics": said["save_mv"]}


def _rms_norm(said: Said) -> dict[str, str]:
    only(said, "results are written once, rounded or not", save_unquant=("0",))
    only(said, "nothing is rounded before the weight here", s=("0",))
    only(said, SCALES, prec_sm=("auto", "fp32"))
    return {**_norm(said), "statistics": said["save_rms"]}


def _add_rms_norm(said: Said) -> dict[str, str]:
    only(said, SUM, save_x=("1",))
    contiguous(said, said["n"], "stride")
    return {
        "rows": said["m"],
        "columns": said["n"],
        "dtype": said["prec"],
        "out_dtype": said["quant"],
        "quant": "row",
        "has_w": "1",
        "has_residual": "1",
    }


def _quantise(said: Said) -> dict[str, str]:
    n = said["n"]
    contiguous(said, n, "stride", "y_stride")
    found = {"rows": said["m"], "columns": n, "dtype": said["prec"], "has_smooth": "1"}
    return found | stride(said, "x_stride", n)


def _quantise_experts(said: Said) -> dict[str, str]:
    contiguous(said, said["h"], "stride")
    return {
        "tokens": said["t"],
        "columns": said["h"],
        "experts": said["e"],
        "slots": said["k"],
        "dtype": said["prec_i"],
        "out_dtype": said["prec_o"],
        "slots_first": "1",
    }


_SIZES = {"m": "3328", "n": "4096"}
_NORM = {
    **_SIZES, "stride": "-1", "x_stride": "-1", "xr_stride": "-1", "y_stride": "-1",
    "yr_stride": "-1", "prec_i": "fp16", "prec_o": "auto", "prec_sm": "auto", "prec_sy": "auto",
    "fadd": "0", "fquant": "0",
}  # fmt: skip

LAYER_NORM = driver(
    Program(
        ("tile_layernorm2d_fwd", "tile_example_layernorm2d_fwd"),
        {**_NORM, "prec_sx": "auto", "xbias": "0", "save_mv": "0"},
        _layer_norm,
        ("e",),
    )
)
RMS_NORM = driver(
    Program(
        ("tile_rmsnorm2d_fwd", "tile_example_rmsnorm2d_fwd"),
        {**_NORM, "save_rms": "0", "save_unquant": "0", "s": "0"},
        _rms_norm,
        ("e",),
    ),
    Program(
        ("tile_add_rmsnorm2d_rdquant_fwd", "tile_example_add_rmsnorm2d_rdquant_fwd"),
        {**_SIZES, "stride": "-1", "prec": "fp16", "quant": "int8", "save_x": "1"},
        _add_rms_norm,
        ("e",),
    ),
)
QUANTISE = driver(
    Program(
        ("tile_smoothquant", "tile_example_smoothquant"),
        {**_SIZES, "stride": "-1", "x_stride": "-1", "y_stride": "-1", "prec": "fp16"},
        _quantise,
        ("e",),
    )
)
QUANTISE_EXPERTS = driver(
    Program(
        ("tile_example_moe_smoothquant",),
        {
            "t": "3328", "h": "4096", "e": "32", "k": "5", "stride": "-1", "prec_i": "fp16",
            "prec_o": "int8",
        },
        _quantise_experts,
    )
)  # fmt: skip
