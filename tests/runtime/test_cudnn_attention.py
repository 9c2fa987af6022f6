"""cuDNN's attention and its gradients through its own functions, without a GPU: what it is asked,
what a graph computes in memory of the host, and how an engine is named, chosen and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fake_cudnn import FakeCudnn, Offer  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import loader, verify  # noqa: E402
from tilewright.arch import device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, LibraryRefused, UnknownName  # noqa: E402
from tilewright.ops.attention import FAMILY, AttentionProblem  # noqa: E402
from tilewright.ops.attention import config as config_module  # noqa: E402
from tilewright.ops.attention_backward import FAMILY as GRADIENTS  # noqa: E402
from tilewright.ops.attention_backward import AttentionBackwardProblem  # noqa: E402
from tilewright.ops.library import library_of  # noqa: E402
from tilewright.ops.library_engine import Engine, Offered  # noqa: E402
from tilewright.runtime import offers  # noqa: E402
from tilewright.tables.row import Row  # noqa: E402
from tilewright.tables.table import Table  # noqa: E402

H200, SM_90 = device("h200_sxm"), tw.arch.arch("sm_90")
PLAIN, TURNED = Offer(1, ((24, 3),)), Offer(2, ((24, 7),), workspace=256)
P = AttentionProblem(2, 4, 5, 7, 16, kv_heads=2, head_dim_v=8, dtype="fp16")


@pytest.fixture
def fake():
    return FakeCudnn(replace(TURNED), replace(PLAIN))


def question(p):
    return FAMILY.library_query(p, SM_90, "cudnn9")


def named(p, offer=PLAIN):
    engine = Engine(offer.number, offer.knobs, 4 in offer.notes)
    return FAMILY.library_config(p, "cudnn9", Offered(engine, offer.workspace))


# --- questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"dtype": "fp32", "dtype_kv": "", "dtype_o": ""}, "dtype"),
        ({"dtype_o": "fp32"}, "dtype"),
        ({"softcap": 8.0}, "features"),
        ({"bias_shape": (1, 4)}, "features"),
        ({"others": "lse+sinks"}, "features"),
        ({"others": "usedkv"}, "features"),
        ({"head_dim": 12}, "head_dim"),
        ({"head_dim_v": 264}, "head_dim"),
        ({"left": 3, "right": 0}, "mask"),
        ({"right": 1}, "mask"),
        ({"right": 0, "q_len": 8}, "mask"),  # rows that see no key
        ({"kv_len": 0}, "extent"),
        ({"batch": 1 << 16}, "extent"),
        ({"q_len": 1 << 25}, "extent"),
        ({"k_strides": (0, 32, 16, 1)}, "extent"),
        ({"v_strides": (112, 1, 56, 7)}, "extent"),  # by columns
        ({"alignment": 8}, "vector_width"),
    ],
    ids=str,
)
def test_what_it_is_not_asked_for_says_why(fields, rule):
    p = replace(P, **fields)
    asked = question(p)
    assert not asked and asked.rule == rule and asked.reason in offers.why_not(FAMILY, p, SM_90)
    if rule not in ("dtype", "features", "head_dim"):  # which a name says
        assert FAMILY.supports(replace(named(P), mask=p.mask.kind), p, SM_90).rule == rule


def test_it_is_nvidias_and_computes_attention_alone():
    gfx942 = tw.arch.arch("gfx942")
    assert "NVIDIA's" in FAMILY.library_query(P, gfx942, "cudnn9").reason
    assert "NVIDIA's" in FAMILY.judge(named(P), gfx942).reason
    assert "no attention" in FAMILY.library_query(P, SM_90, "cublaslt13").reason
    assert "vendor" in FAMILY.pipelines(SM_90) and "vendor" not in FAMILY.pipelines(gfx942)


def test_a_library_whose_attention_had_faults_is_not_asked(fake, driver):
    fake.version = 91001
    with pytest.raises(LibraryRefused, match=r"version 91001.*from 91100 on"):
        fake.opened().offered(driver, 0, question(P), 1)
    assert not fake.living


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"right": 0}, {"others": "lse", "dtype": "bf16"}], ids=str)
@pytest.mark.parametrize("offer", [PLAIN, TURNED, Offer(0, notes=(4,))], ids=str)
def test_a_name_says_all_that_fixes_an_engine(fields, offer):
    p = replace(P, **({"dtype_kv": "", "dtype_o": ""} | fields))
    config = named(p, offer)
    assert FAMILY.parse_name(config.name) == config and library_of(config) == "cudnn9"
    launch = FAMILY.launch(config, p, H200)
    (step,) = launch.steps
    assert (step.theirs.engine.number, step.theirs.engine.knobs) == (offer.number, offer.knobs)
    assert launch.workspace_bytes == step.theirs.workspace >= offer.workspace
    assert bool(FAMILY.repeats(config)) == (4 not in offer.notes)
    assert FAMILY.supports(config, p, SM_90) and FAMILY.judge(FAMILY.interpreted(config), SM_90)
    assert FAMILY.supports(FAMILY.interpreted(config), replace(p, alignment=16), SM_90)
    assert not FAMILY.sources(config, SM_90) and not FAMILY.invariant(config)


@pytest.mark.parametrize(
    "name",
    [
        "attention_fp16_fp16_fp16_d16x8_none_vendor_cudnn9_1_ws3",
        "attention_fp16_fp16_fp16_d16x8_none_vendor_cublaslt13_1_ws0",
        "attention_fp16_bf16_fp16_d16x8_none_vendor_cudnn9_1_ws0",
        "attention_fp16_fp16_fp16_d16x8_none_vendor_cudnn9_1_ws0_f-lsd",
        "attention_fp16_fp16_fp16_d16x8_none_vendor_cudnn9_1",
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(UnknownName):
        FAMILY.parse_name(name)


def test_a_config_that_no_name_says_is_refused():
    with pytest.raises(BadArgument, match="num_warps"):
        config_module.check(replace(named(P), num_warps=4), ())
    with pytest.raises(BadArgument, match="no axes"):
        FAMILY.make_config({"pipeline": "vendor"}, SM_90)


# --- calls -------------------------------------------------------------------------------------


CASES = {
    "plain": P,
    "lse": replace(P, others="lse"),
    "top left": replace(P, right=0, corner="top_left"),
    "bottom right": replace(P, right=0, others="lse"),
    "more queries": replace(P, right=0, corner="top_left", q_len=9),
    "square": replace(P, right=0, q_len=7),
    "heads outside": replace(P, layout="bhsd", kv_layout="bhsd", kv_heads=4),
    "rows apart": replace(P, q_strides=(720, 144, 24, 1), v_strides=(16, 32, 8, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_right(gpu, fake, case):
    p = CASES[case]
    operands = verify.operands_of(p, 3, "cpu")
    wanted = verify.reference(p, operands.inputs)
    arrays = [torch.from_numpy(operands.inputs[name]) for name in "qkv"]
    outs = tuple(torch.from_numpy(x) for x in operands.outputs.values())
    for offer in (PLAIN, TURNED):
        config = named(p, offer)
        verify.reset(operands, {})
        gpu.dispatcher.run_named(
            config.name, *arrays, out=outs if len(outs) > 1 else outs[0],
            scale=operands.inputs["scale"], **FAMILY.options(p),
        )  # fmt: skip
        check = verify.compare_all(p, config, operands.written(p), wanted)
        assert check.ok, f"{check}"
    assert not gpu.driver.launches
    assert [bool(one["workspace"]) for one in fake.calls] == [False, True]


def test_a_scale_is_of_its_call(gpu):
    q, k = (torch.randn(1, 3, 2, 16, dtype=torch.float16) for _ in range(2))
    v = torch.arange(3.0).half().reshape(1, 3, 1, 1).expand(1, 3, 2, 16).contiguous()
    name = named(AttentionProblem(1, 2, 3, 3, 16, dtype="fp16")).name
    steep, default = (
        gpu.dispatcher.run_named(name, q, k, v, out=torch.zeros_like(q), **said)
        for said in ({"scale": 2.0}, {})
    )
    for found, scale in ((steep, 2.0), (default, 0.25)):
        products = torch.einsum("bihd,bjhd->bhij", q.float(), k.float())
        weights = torch.softmax(scale * products, -1)
        wanted = torch.einsum("bhij,bjhd->bihd", weights, v.float())
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-3, atol=1e-3)


def test_a_scale_of_0_or_less_is_not_the_librarys(gpu, monkeypatch, caplog):
    """Its engines take the largest product for the largest score. Another kernel answers."""
    q, k, v = (torch.randn(1, 3, 2, 16, dtype=torch.float16) for _ in range(3))
    p, call = AttentionProblem(1, 2, 3, 3, 16, dtype="fp16"), {"out": torch.zeros_like(q)}
    for scale in (-0.5, 0.0):
        with pytest.raises(LibraryRefused, match="takes numbers above 0 alone"):
            gpu.dispatcher.run_named(named(p).name, q, k, v, scale=scale, **call)
    row = Row(H200, p, named(p).name, (), 10.0, (9.9, 10.1), 0.5)
    dispatcher = Dispatcher(device=H200, tables=Table.of([row], "mine.twt"))
    dispatcher.run("attention", q, k, v, scale=0.5, **call)
    assert library_of(dispatcher.select(p).config)

    def built(self, config, target, index):
        raise LookupError(config.name)

    monkeypatch.setattr(loader.Loader, "functions", built)
    with pytest.raises(LookupError, match=r"basic|gluon"):
        dispatcher.run("attention", q, k, v, scale=-0.5, **call)
    assert not library_of(dispatcher.select(p).config) and "above 0" in caplog.text


# --- choosing -----------------------------------------------------------------------------------


def test_engines_are_candidates_that_constraints_refuse(monkeypatch, library, driver):
    monkeypatch.setattr("tilewright.runtime.libraries.present", lambda kind: library)
    configs, why = offers.offered_configs(driver, 0, FAMILY, P, SM_90, 8)
    assert configs == [named(P, TURNED), named(P)] and not why
    varying = named(P, Offer(7, notes=(4,)))
    ours = FAMILY.default_space(P, SM_90).expand(SM_90).configs[:1]
    registry = tw.Registry("r").register_all([*configs, varying, *ours])

    def refused(**constraints):
        dispatcher = Dispatcher(registry, H200, constraints=tw.Constraints(**constraints))
        fates = dispatcher.explain(P).fates
        return {f.name: f.by for f in fates if f.fate == "refused"}

    assert refused(deterministic=True) == {varying.name: "deterministic"}
    assert refused(max_workspace=0) == {configs[0].name: "max_workspace"}
    assert refused(only_ours=True) == {c.name: "only_ours" for c in (*configs, varying)}
    assert not refused()
    chosen = Dispatcher(registry, H200).select(P)
    assert not library_of(chosen.config)  # estimates of engines say nothing


# --- gradients ----------------------------------------------------------------------------------

OF = AttentionBackwardProblem(2, 4, 5, 7, 16, kv_heads=2, head_dim_v=8, dtype="fp16")


def gradients_by(p, offer=TURNED):
    engine = Engine(offer.number, offer.knobs, varies=True)
    return GRADIENTS.library_config(p, "cudnn9", Offered(engine, offer.workspace))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"softcap": 8.0}, "features"),
        ({"grads": "dq+dk"}, "gradients"),
        ({"dlse": True}, "gradients"),
        ({"accumulate": True}, "gradients"),
        ({"do_strides": (0, 32, 8, 1)}, "extent"),
        ({"right": 0, "q_len": 8}, "mask"),
    ],
    ids=str,
)
def test_gradients_that_it_is_not_asked_for_say_why(fields, rule):
    p = replace(OF, **fields)
    asked = GRADIENTS.library_query(p, SM_90, "cudnn9")
    assert not asked and asked.rule == rule
    if rule not in ("features", "gradients"):  # which a name says
        config = replace(gradients_by(OF), mask=p.mask.kind)
        assert GRADIENTS.supports(config, p, SM_90).rule == rule


def test_a_name_says_an_engine_of_gradients(library, driver):
    asked = GRADIENTS.library_query(OF, SM_90, "cudnn9")
    found = library.offered(driver, 0, asked, 8)
    assert [one.engine.varies for one in found] == [True, True]
    for one in found:
        config = GRADIENTS.library_config(OF, "cudnn9", one)
        assert GRADIENTS.parse_name(config.name) == config and library_of(config) == "cudnn9"
        assert not GRADIENTS.repeats(config) and GRADIENTS.judge(config, SM_90)
        assert not GRADIENTS.supports(config, replace(OF, deterministic=True), SM_90)
        assert GRADIENTS.supports(GRADIENTS.interpreted(config), OF, SM_90)
        launch = GRADIENTS.launch(config, OF, H200)
        assert launch.workspace_bytes >= 4 * 2 * 4 * 5 * (16 + 1) + one.workspace
    ranked = GRADIENTS.rank(OF, [config, GRADIENTS.interpreted(config)], H200)
    assert ranked[-1][0] == config
    with pytest.raises(UnknownName):
        GRADIENTS.parse_name(config.name.replace("g-dq-dk-dv", "g-dq"))
    with pytest.raises(BadArgument, match="no axes"):
        GRADIENTS.make_config({"pipeline": "vendor"}, SM_90)


GRADIENT_CASES = {
    "plain": OF,
    "every head its keys": replace(OF, kv_heads=4),
    "top left": replace(OF, right=0, corner="top_left", q_len=9),
    "bottom right": replace(OF, right=0, layout="bhsd"),
    "rows apart": replace(OF, dk_strides=(448, 64, 24, 1), do_strides=(320, 64, 16, 1)),
}


@pytest.mark.parametrize("case", GRADIENT_CASES)
def test_gradients_are_right(gpu, case):
    p = GRADIENT_CASES[case]
    operands = verify.operands_of(p, 3, "cpu")
    wanted = verify.reference(p, operands.inputs)
    arrays = [x for x in operands.inputs.values() if isinstance(x, np.ndarray)]
    for offer in (PLAIN, TURNED):
        config = gradients_by(p, offer)
        verify.reset(operands, {})
        gpu.dispatcher.run_named(
            config.name, *map(torch.from_numpy, arrays),
            out=tuple(map(torch.from_numpy, operands.outputs.values())),
            scale=operands.inputs["scale"], **GRADIENTS.options(p),
        )  # fmt: skip
        check = verify.compare_all(p, config, operands.written(p), wanted)
        assert check.ok, f"{check}"
