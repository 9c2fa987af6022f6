"""The kernels in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conv_problems import drawn

from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.ops.conv.stated import first_strides

FAMILY = ops.family("conv")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def kernel(p: ConvProblem, **fields) -> str:
    """The name of a kernel for `p`."""
    pipeline = fields.get("pipeline", "implicit")
    read, made = PIPELINES[pipeline].alignments(p)
    said = {
        "direction": p.direction, "spatial_dims": len(p.spatial), "dtype": p.dtype,
        "dtype_out": p.dtype_out, "precision": p.precision, "epilogue": p.epilogue,
        "alignment": read, "alignment_out": made, "tile_m": 32, "tile_n": 16, "tile_k": 32,
        "group_m": 8 if pipeline == "implicit" else 1, **fields,
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said}, arch("sm_90")).name


@pytest.mark.grid(4)
@pytest.mark.parametrize("seed", range(30))
def test_results_are_the_references(dispatcher, seed):
    found = verify.verify(dispatcher, drawn(seed), seed=seed)
    assert found.ok, found


@pytest.mark.grid(1)
@pytest.mark.parametrize("seed", range(100, 130, 2))
def test_every_form_computes_the_same(dispatcher, seed):
    """Steps of one tap and of several, whole sums and parts, vectors and single elements."""
    problem = drawn(seed)
    forms = [{"merged": merged} for merged in (False, True)]
    if problem.direction == "weights":
        forms += [{**form, "scheduler": "split"} for form in forms]
    if problem.depthwise and problem.precision == "ieee":
        own = {"pipeline": "depthwise", "tile_m": 8, "tile_k": 1}
        forms.append(own)
        if problem.direction == "weights":
            forms.append({**own, "scheduler": "split", "tile_k": 4})
    forms.append({"alignment": 1, "alignment_out": 1})
    forms.append({"index_bits": 64})
    for form in forms:
        name = kernel(problem, **form)
        found = verify.verify(dispatcher, problem, name, seed=seed)
        assert found.ok, (name, found)


STRIDED = ConvProblem(2, 16, 24, (9, 11), (3, 3), stride=(2, 3), pad=(1, 1), dtype="fp16")


@pytest.mark.turns(24)
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize("groups", [1, 4])
def test_layouts(dispatcher, direction, groups):
    """Channels-last, channels-first, each array its own, and rows with gaps."""
    plain = replace(STRIDED, direction=direction, groups=groups)
    first = first_strides(plain)
    gaps = {
        name: tuple(2 * s if s != 1 else s for s in plain.strides_of(name[0])) for name in first
    }
    for strides in ({}, first, {"x_strides": first["x_strides"]}, {"w_strides": first["w_strides"]},
                    {"y_strides": first["y_strides"]}, gaps):  # fmt: skip
        found = verify.verify(dispatcher, replace(plain, **strides), seed=3)
        assert found.ok, (strides, found)


def test_a_class_without_a_tap_is_zero(dispatcher):
    """A filter of one tap and a stride of 2: three of four pixels of x were never seen."""
    problem = ConvProblem(1, 8, 8, (6, 6), (1, 1), stride=(2, 2), direction="data", dtype="fp32")
    made = verify.operands_of(problem, 1)
    verify.run(dispatcher, problem, made, "")
    x = np.asarray(made.outputs["x"])
    assert np.isfinite(x).all()
    seen = np.zeros((6, 6), bool)
    seen[::2, ::2] = True
    assert (x[0, :, ~seen] == 0).all() and (x[0, :, seen] != 0).all()


@pytest.mark.turns(64)
@pytest.mark.parametrize("way", [(2, 1), (1, 2)], ids=["height", "width"])
def test_a_class_without_a_tap_is_zero_as_a_gpu_computes_it(tmp_path, way):
    """Taps two pixels apart meet every second pixel. A step of several taps divides by how many
    there are, and a pipelined loop before it knows that there is a step."""
    problem = ConvProblem(
        2, 4, 6, (10, 10), (3, 3), stride=way, pad=(2, 2), dilation=(4, 4), direction="data"
    )
    emulated = Dispatcher(device="emulated:mi300x", store=Store(tmp_path))
    for stages in (1, 2):
        name = kernel(problem, merged=True, tile_m=64, num_stages=stages)
        found = verify.verify(emulated, problem, name, seed=stages)
        assert found.ok, (name, found)


@pytest.mark.parametrize(
    "sizes",
    [
        {"n": 0}, {"c": 0, "groups": 1}, {"k": 0}, {"spatial": (0, 4), "pad": (2, 1)},
        {"n": 0, "direction": "weights"}, {"c": 0, "direction": "data"},
        {"k": 0, "direction": "data"}, {"k": 0, "direction": "weights"},
    ],
    ids=str,
)  # fmt: skip
def test_sizes_of_zero(dispatcher, sizes):
    said = {"n": 2, "c": 8, "k": 8, "spatial": (5, 4), "filter": (3, 3), "pad": (1, 1)}
    problem = ConvProblem(**{**said, **sizes})
    made = verify.operands_of(problem, 1)
    verify.run(dispatcher, problem, made, "")
    (out,) = made.outputs.values()
    assert out.shape == problem.shape_of(problem.output_name)
    assert (np.asarray(out, np.float32) == 0).all()


def test_nan_of_another_group_is_not_read(dispatcher):
    """Tiles are wider than a group."""
    for direction in ("forward", "data"):
        problem = ConvProblem(
            1, 12, 12, (5, 5), (3, 3), 4, pad=(1, 1), direction=direction, dtype="fp16"
        )
        made = verify.operands_of(problem, 2)
        (read, _, out), values = problem_names(direction), {**made.inputs}
        values[read][:, 3:6] = np.nan
        verify.run(dispatcher, problem, made, "")
        got = np.asarray(made.outputs[out], np.float32)
        assert np.isnan(got[:, 3:6]).all()
        assert np.isfinite(np.delete(got, [3, 4, 5], 1)).all()


def problem_names(direction):
    from tilewright.ops.conv.problem import DIRECTIONS

    return DIRECTIONS[direction]


@pytest.mark.turns(32)
def test_gradients_of_weights_repeat_bit_for_bit(dispatcher):
    problem = ConvProblem(
        3, 16, 16, (12, 12), (3, 3), pad=(1, 1), direction="weights", dtype="fp16"
    )
    name = kernel(problem, scheduler="split")
    first, again = (verify.operands_of(problem, 3) for _ in "ab")
    for made in (first, again):
        verify.run(dispatcher, problem, made, name)
    (one,), (other,) = first.outputs.values(), again.outputs.values()
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x, w: ((x, w), {"direction": "data"}), "direction data needs spatial="),
        (lambda x, w: ((x, w), {"filter": (3, 3)}), "direction forward takes no filter="),
        (lambda x, w: ((x, w), {"padding": (1, 1)}), r"no option 'padding' \(did you mean"),
        (lambda x, w: ((x, w), {"stride": 2}), "stride = 2 is not a tuple"),
        (lambda x, w: ((x, w), {"groups": 0}), "groups = 0 is not a number from 1"),
        (lambda x, w: ((x, w[:, :3]), {}), r"w is \[8, 3, 3, 3\], but beside .* \[8, 4, 3, 3\]"),
        (lambda x, w: ((x, w.astype(np.float32)), {}), "x is fp16 but w is fp32"),
        (lambda x, w: ((x[..., 0, 0], w), {}), r"x is \[2, 4\], but must be"),
        (lambda x, w: ((x[:, ::-1], w), {}), "x has negative strides"),
        (lambda x, w: ((x, w), {"epilogue": "bias"}), "epilogue 'bias' reads bias="),
        (lambda x, w: ((x, w), {"bias": w[:, 0, 0, 0]}), "no operand 'bias'.* with epilogue ''"),
        (lambda x, w: ((x, w), {"epilogue": "bias", "bias": w[:, 0, 0, 0]}), "bias has strides"),
    ],
)
def test_a_wrong_call_is_refused(dispatcher, call, why):
    x, w = np.ones((2, 4, 6, 6), np.float16), np.ones((8, 4, 3, 3), np.float16)
    operands, options = call(x, w)
    with pytest.raises(BadArgument, match=why):
        dispatcher.run("conv", *operands, **options)
