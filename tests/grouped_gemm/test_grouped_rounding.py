"""Results that a grouped product rounds to 8 bits itself, with the scale of each row's 128."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped_cases import config
from grouped_scale_cases import label, rounding

import selection
import tilewright as tw
from shared_builds import build_once
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem

SM90 = arch("sm_90")
WORDS = {"form": "contiguous", "groups": 2, "m": 30, "n": 256, "k": 128, "dtype_a": "e4m3fn"}


def ended(problem, seed: int = 1) -> dict:
    """Inputs of groups that end in either warp group's rows, and of one without any."""
    inputs = dict(verify.operands_of(problem, seed).inputs)
    if problem.form == "masked":
        inputs["counts"][...] = [70, 0, 61]
    else:
        inputs["offsets"][...] = [40, 40, 185]
    return inputs


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", [c for c in rounding() if c[0].pipeline == "basic"], ids=label)
def test_results_and_scales_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="h200_sxm"), problem, kernel.name, seed=3)
    assert result.ok, result


def test_sums_of_whole_numbers_are_rounded_too():
    problem = GroupedGemmProblem(**{**WORDS, "dtype_a": "int8", "m": 5, "k": 48}, quant="block")
    said = {"form": "contiguous", "dtype_a": "int8", "dtype_c": "int8", "quant": "block"}
    kernel = config(tile_m=16, tile_n=128, tile_k=32, num_warps=4, **said)
    result = verify.verify(Dispatcher(device="h200_sxm"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", [c for c in rounding() if c[0].pipeline != "basic"], ids=label)
def test_the_kernel_in_gluon_is_right_in_the_simulation(case):
    kernel, problem = case
    assert FAMILY.interpreted(kernel).pipeline == "basic"
    assert worst_error(kernel, problem, device("h200"), 1, ended(problem)) <= 1.0


def test_blocks_of_zeros_and_tiny_values_have_an_inverse():
    """A block of zeros has the scale 1; one whose scale has no inverse in fp32 the least that has
    one."""
    torch = pytest.importorskip("torch")
    x, w = torch.eye(4), torch.zeros(1, 128, 4)
    w[0, :, 1], w[0, :, 2], w[0, :, 3] = 1e-40, 3.0, -5.0
    out = torch.empty(4, 128, dtype=torch.float8_e4m3fn), torch.empty(4, 1)
    ends = torch.tensor([4], dtype=torch.int32)
    tw.grouped_gemm(x, w.transpose(1, 2), ends, quant="block", out=out, precision="ieee")
    y, scales = out[0].float(), out[1][:, 0].tolist()
    assert scales[0] == 1.0 and not y[0].any()
    assert scales[1] == 2.0**-126 and torch.isfinite(y[1]).all()
    assert scales[2:] == pytest.approx([3 / 448, 5 / 448])
    assert (y[2] == 448).all() and (y[3] == -448).all()


def test_a_call_makes_both_and_takes_both():
    torch = pytest.importorskip("torch")
    made = torch.Generator().manual_seed(0)

    def eight(*shape):
        return torch.randn(shape, generator=made).to(torch.float8_e4m3fn)

    x, w = eight(6, 256), eight(3, 256, 256)
    ends = torch.tensor([4, 4, 6], dtype=torch.int32)
    said = {"scale_a": "1x128", "scale_b": "128x128", "epilogue": "swiglu", "gates_apart": True}
    given = (x, w.transpose(1, 2), ends, torch.rand(6, 2), torch.rand(3, 2, 2).transpose(1, 2))
    columns = w.float() * given[4].transpose(1, 2).repeat_interleave(128, 1).repeat_interleave(
        128, 2
    )
    rows = x.float() * given[3].repeat_interleave(128, 1)
    gates, ups = torch.cat([rows[:4] @ columns[0].T, rows[4:] @ columns[2].T]).chunk(2, 1)
    whole = torch.nn.functional.silu(gates) * ups
    y, scales = tw.grouped_gemm(*given, quant="block", **said)
    assert y.dtype == torch.float8_e4m3fn and scales.shape == (6, 1)
    assert (y.float() * scales - whole).abs().max() < 0.05 * whole.abs().max()
    out = torch.empty_like(y), torch.empty_like(scales)
    tw.grouped_gemm(*given, quant="block", out=out, **said)
    assert torch.equal(out[0].float(), y.float()) and torch.equal(out[1], scales)

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(*operands):
        return tw.grouped_gemm(*operands, quant="block", **said)

    assert torch.equal(compiled(*given)[1], scales)
    for bad, why in (
        (out[0], "out holds 1 array; a grouped_gemm makes 2"),
        ((torch.empty(()), out[1]), "out holds a number for the result"),
        ((out[0], out[1].half()), r"they are fp32 of shape \(6, 1\)"),
        ((out[0], torch.empty(1, 6).T[:, :0]), r"they are fp32 of shape \(6, 1\)"),
    ):
        with pytest.raises(BadArgument, match=why):
            tw.grouped_gemm(*given, quant="block", out=bad, **said)


def test_words_and_names_say_it():
    problem = GroupedGemmProblem(**WORDS, quant="block")
    assert problem.dtype_c == "e4m3fn" and problem.scales_shape == (30, 2)
    assert "quant block" in str(problem)
    plain = GroupedGemmProblem(**WORDS, dtype_c="bf16")
    assert plain.min_bytes - problem.min_bytes == 30 * 256 - 30 * 2 * 4
    words = {word: str(value) for word, value in WORDS.items()}
    assert FAMILY.parse_problem(words | {"quant": "block"}, SM90) == problem
    for kernel, _ in rounding():
        assert "_qb_" in kernel.name and FAMILY.parse_name(kernel.name) == kernel
        assert FAMILY.judge(kernel, SM90), kernel.name
    name = config(dtype_a="e4m3fn", dtype_c="bf16").name.replace("contiguous_", "contiguous_qb_")
    with pytest.raises(UnknownName, match="makes a last scale"):
        FAMILY.parse_name(name)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"quant": "row"}, "neither '' nor 'block'"),
        ({"n": 192}, "192 columns are no whole 128s"),
        ({"dtype_c": "bf16"}, "makes 8 bits, not bf16"),
        ({"dtype_a": "bf16"}, "makes 8 bits, not bf16: say dtype_c, or pass out"),
        ({"zero_rest": True}, "has no zero_rest"),
        ({"form": "weights", "layout": "crr"}, "quant is for forms contiguous"),
    ],
)
def test_what_is_refused(fields, why):
    with pytest.raises(BadArgument, match=why):
        GroupedGemmProblem(**{**WORDS, "quant": "block", **fields})


def test_kernels_that_cannot_say_so():
    kernel, problem = rounding()[5]
    for fields, rule, why in (
        ({"pipeline": "tma"}, "quant", "makes no scales; basic and gluon_scaled make them"),
        ({"tile_n": 64, "scale_b": ""}, "quant", "64 columns of C, no whole 128s"),
    ):
        verdict = FAMILY.judge(replace(kernel, **fields), SM90)
        assert verdict.rule == rule and why in verdict.reason, verdict
    plain = replace(problem, quant="", dtype_c="bf16", ldc=0)
    assert FAMILY.supports(kernel, plain, SM90).rule == "signature"
    assert not FAMILY.gradients(problem, ("A",))


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("name", "dtype"), [("sm_80", "int8"), ("gfx942", "e4m3fnuz"), ("gfx1250", "e4m3fn")]
)
def test_the_default_space_has_kernels_for_it(name, dtype):
    problem = GroupedGemmProblem(**{**WORDS, "dtype_a": dtype, "n": 512}, quant="block")
    this = arch(name)
    configs = FAMILY.default_space(problem, this).expand(this).configs
    assert any(FAMILY.supports(one, problem, this) for one in configs)


@pytest.mark.turns(8)
def test_they_compile(store):
    if "sm_90" not in selection.architectures({"sm_90": {}}):
        return
    report = build_once([(kernel, "sm_90") for kernel, _ in rounding()[::3]], store)
    assert not report.failures, "\n".join(map(str, report.failures))
