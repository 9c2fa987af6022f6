"""cuDNN's attention in fp8 through its own functions, without a GPU: what it is asked for on which
architecture, how an engine is named and chosen, and what a graph computes in memory of the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fake_cudnn import FakeCudnn, Offer  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import verify  # noqa: E402
from tilewright.arch import device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import LibraryRefused, UnknownName  # noqa: E402
from tilewright.ops.attention import FAMILY, AttentionProblem  # noqa: E402
from tilewright.ops.library import library_of  # noqa: E402
from tilewright.ops.library_engine import Engine, Offered  # noqa: E402
from tilewright.runtime import offers  # noqa: E402
from tilewright.tables.row import Row  # noqa: E402
from tilewright.tables.table import Table  # noqa: E402

H200 = device("h200_sxm")
PLAIN = Offer(2, ((24, 32),), workspace=256)
P = AttentionProblem(
    2, 4, 5, 7, 32, kv_heads=2, head_dim_v=16, dtype="e4m3fn", dtype_o="e4m3fn", others="tscale"
)
TORCH = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@pytest.fixture
def fake():
    return FakeCudnn(replace(PLAIN))


def question(p, arch="sm_90"):
    return FAMILY.library_query(p, tw.arch.arch(arch), "cudnn9")


def named(p, offer=PLAIN):
    engine = Engine(offer.number, offer.knobs, 4 in offer.notes)
    return FAMILY.library_config(p, "cudnn9", Offered(engine, offer.workspace))


# --- questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"others": "tscale+oscale"}, "features"),
        ({"others": "hscale"}, "features"),
        ({"others": "bscale", "scale_block": 4}, "features"),
        ({"others": "sinks"}, "features"),
        ({"head_dim": 24}, "head_dim"),
        ({"head_dim_v": 272}, "head_dim"),
        ({"right": 0}, "mask"),  # from the bottom right
        ({"v_strides": (224, 1, 112, 7)}, "extent"),  # by columns
        ({"alignment": 8}, "vector_width"),
        ({"dtype": "e4m3fnuz", "dtype_kv": "", "dtype_o": "e4m3fnuz"}, "dtype"),
        ({"dtype": "bf16", "dtype_o": "bf16"}, "dtype"),  # fp8 in the cache alone
    ],
    ids=str,
)
def test_what_it_is_not_asked_for_says_why(fields, rule):
    p = replace(P, **fields)
    for arch in ("sm_90", "sm_100"):
        asked = question(p, arch)
        assert not asked and asked.rule == rule
        assert asked.reason in offers.why_not(FAMILY, p, tw.arch.arch(arch))


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
def test_an_architecture_says_what_is_written_and_how_long_rows_may_be(arch):
    """On Hopper engines write fp8 alone; before it there are none."""
    has, wide = arch not in ("sm_80", "sm_89"), arch in ("sm_100", "sm_103")
    cases = {
        P: has,
        replace(P, dtype_o="bf16"): wide,
        replace(P, dtype_o="fp16"): wide,
        replace(P, dtype_o="fp32"): False,
        replace(P, head_dim=256): False,
    }
    this = tw.arch.arch(arch)
    for p, asked in cases.items():
        found, config = question(p, arch), named(p)
        assert bool(found) == bool(FAMILY.judge(config, this)) == asked
        assert bool(FAMILY.supports(config, p, this)) == asked
        if not asked:
            assert found.rule in ("dtype", "head_dim") and arch in found.reason


def test_versions_that_wrote_no_more_bits_are_not_asked_for_them(fake, driver):
    fake.version = 91200
    library = fake.opened()
    assert library.offered(driver, 0, question(P), 1)
    with pytest.raises(LibraryRefused, match=r"version 91200.*O in bf16 from 91300 on"):
        library.offered(driver, 0, question(replace(P, dtype_o="bf16"), "sm_100"), 1)
    assert not fake.living


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype_o", ["e4m3fn", "bf16", "fp16"])
@pytest.mark.parametrize("others", ["", "lse+tscale"])
def test_a_name_says_all_that_fixes_an_engine(dtype_o, others):
    p = replace(P, dtype_o=dtype_o, others=others, right=0, corner="top_left")
    config = named(p)
    assert f"e4m3fn_e4m3fn_{dtype_o}_d32x16_causal_vendor_cudnn9_2_k24-32" in config.name
    assert FAMILY.parse_name(config.name) == config and library_of(config) == "cudnn9"
    (step,) = FAMILY.launch(config, p, H200).steps
    assert step.theirs.scaled == ("tscale" in others) and step.theirs.o.dtype == dtype_o
    assert FAMILY.supports(FAMILY.interpreted(config), p, tw.arch.arch("sm_90"))


def test_names_of_other_mixtures_are_refused():
    for types in ("e4m3fn_e5m2_e4m3fn", "bf16_bf16_e4m3fn", "fp16_fp16_bf16"):
        with pytest.raises(UnknownName):
            FAMILY.parse_name(f"attention_{types}_d32x16_none_vendor_cudnn9_2_ws1")


# --- calls -------------------------------------------------------------------------------------

CASES = {
    "scales": P,
    "no scales": replace(P, others=""),
    "lse": replace(P, others="lse+tscale"),
    "e5m2": replace(P, dtype="e5m2", dtype_kv="e5m2", dtype_o="e5m2"),
    "top left": replace(P, right=0, corner="top_left", q_len=9),
    "square": replace(P, right=0, q_len=7, others="lse"),
    "heads outside": replace(P, layout="bhsd", kv_layout="bhsd", kv_heads=4),
}


def on_torch(array):
    """An array as a tensor over the same memory."""
    dtype = TORCH.get(array.dtype.name.removeprefix("float8_"))
    return torch.from_numpy(array) if dtype is None else torch.from_numpy(
        array.view(np.uint8)
    ).view(dtype)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_are_right(gpu, fake, case):
    p = CASES[case]
    operands = verify.operands_of(p, 3, "cpu")
    inputs, scales = operands.inputs, ("q_scale", "k_scale", "v_scale")
    wanted = verify.reference(p, inputs)
    outs = tuple(map(on_torch, operands.outputs.values()))
    config = named(p)
    verify.reset(operands, {})
    gpu.dispatcher.run_named(
        config.name, *(on_torch(inputs[name]) for name in "qkv"),
        out=outs if len(outs) > 1 else outs[0], scale=inputs["scale"],
        **{name: on_torch(inputs[name]) for name in scales if name in inputs}, **FAMILY.options(p),
    )  # fmt: skip
    check = verify.compare_all(p, config, operands.written(p), wanted)
    assert check.ok, f"{check}"
    assert not gpu.driver.launches and len(fake.calls) == 1


def test_small_weights_keep_their_bits(gpu):
    """Of 1,100 keys alike each has a weight that rounds to zero in e4m3."""
    p = AttentionProblem(1, 1, 2, 1100, 16, dtype="e4m3fn", dtype_o="e4m3fn")
    q = torch.zeros(1, 2, 1, 16).to(torch.float8_e4m3fn)
    k, v = (torch.ones(1, 1100, 1, 16).to(torch.float8_e4m3fn) for _ in range(2))
    o = gpu.dispatcher.run_named(named(p).name, q, k, v, out=torch.zeros_like(q))
    assert (o.float() == 1).all()


def test_a_scale_of_0_or_less_is_not_the_librarys(gpu):
    q, k, v = (torch.randn(1, 3, 2, 16).to(torch.float8_e4m3fn) for _ in range(3))
    p = AttentionProblem(1, 2, 3, 3, 16, dtype="e4m3fn", dtype_o="e4m3fn")
    with pytest.raises(LibraryRefused, match="takes numbers above 0 alone"):
        gpu.dispatcher.run_named(named(p).name, q, k, v, scale=-1.0, out=torch.zeros_like(q))


# --- choosing -----------------------------------------------------------------------------------


def test_engines_are_candidates_that_constraints_refuse(monkeypatch, library, driver):
    monkeypatch.setattr("tilewright.runtime.libraries.present", lambda kind: library)
    sm_90 = tw.arch.arch("sm_90")
    configs, why = offers.offered_configs(driver, 0, FAMILY, P, sm_90, 8)
    assert configs == [named(P)] and not why
    varying = named(P, Offer(7, notes=(4,)))
    ours = FAMILY.default_space(P, sm_90).expand(sm_90).configs[:1]
    registry = tw.Registry("r").register_all([*configs, varying, *ours])

    def refused(**constraints):
        dispatcher = Dispatcher(registry, H200, constraints=tw.Constraints(**constraints))
        return {f.name: f.by for f in dispatcher.explain(P).fates if f.fate == "refused"}

    assert refused(deterministic=True) == {varying.name: "deterministic"}
    assert refused(only_ours=True) == {c.name: "only_ours" for c in (*configs, varying)}
    assert not refused()


def test_a_tables_row_is_an_engine(gpu):
    row = Row(H200, P, named(P).name, (), 10.0, (9.9, 10.1), 0.5)
    table = Table.of([row], "mine.twt")
    assert Dispatcher(device=H200, tables=table).select(P).config == named(P)
    ours = Dispatcher(device=H200, tables=table, constraints=tw.Constraints(only_ours=True))
    assert not library_of(ours.select(P).config)
