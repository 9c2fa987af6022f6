"""cuDNN through its own functions, without a GPU: what it is told, what it computes in memory of
the host, and what becomes of its refusals."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from fake_cudnn import FakeCudnn, Offer  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402
from tilewright.arch import device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, LaunchFailed, LibraryRefused, UnknownName  # noqa: E402
from tilewright.ops.conv import FAMILY, ConvProblem  # noqa: E402
from tilewright.ops.library import library_of  # noqa: E402
from tilewright.ops.library_engine import Engine, Offered  # noqa: E402
from tilewright.runtime import libraries, offers  # noqa: E402

H200, SM_90 = device("h200_sxm"), tw.arch.arch("sm_90")
PLAIN, TURNED = Offer(38), Offer(49, ((2, 5), (14, 3)), workspace=3 << 20)
P = ConvProblem(2, 8, 16, (9, 7), (3, 3), pad=(1, 1), dtype="fp32", alignment=4)
DIRECTIONS = ("forward", "data", "weights")


@pytest.fixture
def fake():
    return FakeCudnn(replace(PLAIN), replace(TURNED))


def question(p, library):
    return FAMILY.library_query(p, SM_90, library.name)


def named(p, offer=PLAIN):
    engine = Engine(offer.number, offer.knobs, 4 in offer.notes)
    return FAMILY.library_config(p, "cudnn9", Offered(engine, offer.workspace))


# --- questions --------------------------------------------------------------------------------


def test_engines_are_offered_by_number_and_knobs(fake, library, driver):
    found = library.offered(driver, 0, question(P, library), 8)
    assert found == [Offered(Engine(38), 0), Offered(Engine(49, ((2, 5), (14, 3))), 3 << 20)]
    assert len(library.offered(driver, 0, question(P, library), 1)) == 1
    assert not fake.living and fake.opened_handles == 1


@pytest.mark.parametrize(
    ("offer", "fields", "offered"),
    [
        (Offer(1, refused=True), {}, False),
        (Offer(1, workspace=(1 << 30) + 1), {}, False),
        (Offer(1, notes=(1,)), {}, False),  # operands in fewer bits
        (Offer(1, notes=(5, 6)), {}, False),  # Winograd's transform
        (Offer(1, notes=(0,)), {}, False),  # matrix units multiply TF32
        (Offer(1, notes=(0,)), {"precision": "tf32"}, True),
        (Offer(1, notes=(0,)), {"dtype": "bf16", "dtype_out": ""}, True),
    ],
)
def test_engines_that_may_be_too_far_off_or_cannot_run_are_left_out(driver, offer, fields, offered):
    fake = FakeCudnn(offer)
    library = fake.opened()
    asked = question(replace(P, **fields), library)
    if offered:
        assert library.offered(driver, 0, asked, 8) == [Offered(Engine(1), 0)]
    else:
        with pytest.raises(LibraryRefused, match="cudnn9 has no engine for y of x 2×8×9×7"):
            library.offered(driver, 0, asked, 8)
    assert not fake.living


def test_an_engine_that_varies_is_known_by_its_name(driver):
    library = FakeCudnn(Offer(7, notes=(4,))).opened()
    (found,) = library.offered(driver, 0, question(P, library), 8)
    config = FAMILY.library_config(P, "cudnn9", found)
    assert "_varies" in config.name and not FAMILY.repeats(config)
    assert FAMILY.repeats(named(P))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"epilogue": "relu"}, "no epilogue as relu"),
        ({"dtype": "fp16", "dtype_out": "fp32"}, "fp16 into fp32"),
        ({"dtype": "int8", "dtype_out": ""}, "int8 into"),
        ({"pad": (-1, 0), "pad_after": (-1, 0)}, "leaves pixels out"),
        ({"pad_after": (1, 2)}, "(1, 2) behind"),
        ({"n": 0}, "without elements"),
        ({"x_strides": (0, 1, 56, 8)}, "repeats elements"),
    ],
)
def test_what_it_is_not_asked_for_says_why(library, fields, reason):
    asked = question(replace(P, **fields), library)
    assert not asked and reason in asked.reason


def test_amds_gpus_do_not_have_it():
    gfx942 = tw.arch.arch("gfx942")
    assert "NVIDIA's" in FAMILY.library_query(P, gfx942, "cudnn9").reason
    assert "NVIDIA's" in FAMILY.judge(named(P), gfx942).reason
    assert "no single products" in FAMILY_OF_GEMM.library_query(GEMM, SM_90, "cudnn9").reason


GEMM = tw.GemmProblem(64, 64, 64)
FAMILY_OF_GEMM = ops.family("gemm")


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "offer", [PLAIN, TURNED, Offer(0, ((2, 5), (12, -1)), notes=(4,), workspace=1)]
)
def test_a_name_says_all_that_fixes_an_engine(direction, offer):
    p = ConvProblem(2, 8, 16, (9, 7), (3, 3), direction=direction, dtype="fp32", precision="tf32")
    config = named(p, offer)
    assert FAMILY.parse_name(config.name) == config and library_of(config) == "cudnn9"
    (step,) = FAMILY.launch(config, p, H200).steps
    assert (step.theirs.engine.number, step.theirs.engine.knobs) == (offer.number, offer.knobs)
    assert offer.workspace <= step.theirs.workspace < offer.workspace + (2 << 20)
    assert FAMILY.supports(config, p, SM_90) and FAMILY.judge(FAMILY.interpreted(config), SM_90)


@pytest.mark.parametrize(
    "name",
    [
        "conv_forward_2d_fp32_fp32_vendor_cudnn9_38_ws3_al4",  # no power of two
        "conv_forward_2d_fp32_fp32_vendor_cublaslt13_38_ws0_al4",
        "conv_forward_2d_fp32_fp32_vendor_cudnn9_38_k5-1_k2-1_ws0_al4",  # in no order
        "conv_forward_2d_fp32_fp32_vendor_cudnn9_038_ws0_al4",
        "conv_forward_2d_fp32_fp32_vendor_cudnn9_38_k2--0_ws0_al4",
        "conv_forward_2d_fp32_fp32_vendor_cudnn9_99999999999_ws0_al4",
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(UnknownName):
        FAMILY.parse_name(name)


def test_a_config_that_no_name_says_is_refused():
    from tilewright.ops.conv import names

    with pytest.raises(BadArgument, match="num_warps"):
        names.check(replace(named(P), num_warps=4))


# --- making ready -------------------------------------------------------------------------------


def asked_by(p, offer=PLAIN):
    (step,) = FAMILY.launch(named(p, offer), p, H200).steps
    return step.theirs


def test_what_it_describes_lives_as_long_as_it_does(fake, library, driver):
    ready = library.prepared(driver, 0, asked_by(P, TURNED))
    assert fake.living
    del ready
    gc.collect()
    assert not fake.living


def test_an_engine_that_is_not_there_is_refused_and_leaves_nothing(fake, library, driver):
    with pytest.raises(LibraryRefused, match=r"cudnn9 refused.*NOT_SUPPORTED \(3000\)"):
        library.prepared(driver, 0, asked_by(P, Offer(404)))
    fake.offers[49].workspace = 1 << 29
    with pytest.raises(LibraryRefused, match=r"536870912 bytes of workspace.*engine 49"):
        library.prepared(driver, 0, asked_by(P, TURNED))
    assert not fake.living


def test_a_library_of_another_major_version_is_refused(fake):
    fake.version = 80907
    with pytest.raises(LibraryRefused, match="is version 80907, not 9"):
        fake.opened()
    assert libraries.names("cudnn") == ["cudnn9"]


# --- calls -------------------------------------------------------------------------------------


LAYERS = {
    "padded": P,
    "strided, dilated, grouped": replace(
        P, groups=2, stride=(2, 1), dilation=(1, 2), pad=(0, 2), pad_after=(0, 2)
    ),
    "depthwise": replace(P, k=8, groups=8),
    "one dimension": ConvProblem(2, 4, 6, (11,), (3,), stride=(2,), pad=(1,), dtype="fp32"),
    "three": ConvProblem(1, 3, 4, (4, 5, 6), (2, 3, 1), pad=(0, 1, 0), dtype="fp32"),
    "channels first": replace(P, x_strides=(504, 63, 7, 1), y_strides=(1008, 63, 7, 1)),
    "1×1": ConvProblem(2, 8, 16, (5, 5), (1, 1), dtype="fp32"),
}


@pytest.mark.grid(7)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_results_are_right(gpu, fake, direction, layer):
    p = replace(LAYERS[layer], direction=direction)
    inputs, out = verify.make_operands(p, seed=3)
    arrays, out = [torch.from_numpy(one) for one in inputs], torch.from_numpy(out)
    (wanted,) = verify.reference(p, inputs).values()
    for offer in (PLAIN, TURNED, TURNED):
        out.fill_(torch.nan)
        gpu.dispatcher.run_named(named(p, offer).name, *arrays, out=out, **FAMILY.options(p))
        np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert fake.streams == [stand_in_gpu.CURRENT_STREAM] * 3 and not gpu.driver.launches
    assert [bool(one["workspace"]) for one in fake.calls] == [False, True, True]
    assert {one["direction"] for one in fake.calls} == {direction}
    assert all(fake.living[made].kind != 16 for made in fake.living)  # packs are gone


def test_a_status_of_a_call_is_the_librarys(gpu, fake):
    x, w, out = torch.zeros(2, 8, 9, 7), torch.zeros(16, 8, 3, 3), torch.zeros(2, 16, 9, 7)
    name = named(P).name
    fake.status = 5000
    with pytest.raises(LaunchFailed, match=r"cudnn9 for y of x .* in fp32: CUDNN_STATUS"):
        gpu.dispatcher.run_named(name, x, w, out=out, pad=(1, 1))
    fake.status = 0
    gpu.dispatcher.run_named(name, x, w, out=out, pad=(1, 1))


def test_threads_share_a_handle(gpu, fake):
    w, wrong = torch.ones(16, 8, 3, 3), []

    def work(value):
        x, out = torch.full((2, 8, 9, 7), float(value)), torch.zeros(2, 16, 9, 7)
        for _ in range(20):
            gpu.dispatcher.run_named(named(P).name, x, w, out=out, pad=(1, 1))
            if out[0, 0, 4, 4] != 72 * value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong and fake.opened_handles == 1


# --- choosing -----------------------------------------------------------------------------------


def test_a_problem_is_asked_of_each_library_that_computes_it(monkeypatch, library, driver):
    asked = []

    class Other:
        name = "cublaslt13"

        def offered(self, *words):
            asked.append(words)
            raise LibraryRefused("nothing")

    monkeypatch.setattr(
        libraries, "present", lambda kind: {"cudnn": library, "cublaslt": Other()}[kind]
    )
    one = LAYERS["1×1"]
    configs, why = offers.offered_configs(driver, 0, FAMILY, one, SM_90, 8)
    assert configs == [named(one), named(one, TURNED)] and not why and len(asked) == 1
    configs, _ = offers.offered_configs(driver, 0, FAMILY, P, SM_90, 1)
    assert configs == [named(P)] and len(asked) == 1
    configs, why = offers.offered_configs(driver, 0, FAMILY_OF_GEMM, GEMM, SM_90, 8)
    assert not configs and why == "nothing"
    relu = replace(P, epilogue="relu")
    assert "no epilogue" in offers.why_not(FAMILY, relu, SM_90)


def test_only_ours_and_deterministic_refuse_what_they_should():
    varying = named(P, Offer(7, notes=(4,)))
    registry = tw.Registry("r").register_all([named(P), varying])
    same = tw.Constraints(deterministic=True)
    fates = Dispatcher(registry, H200, constraints=same).explain(P).fates
    assert {f.name: f.by for f in fates if f.fate == "refused"} == {varying.name: "deterministic"}
    ours = Dispatcher(registry, H200, constraints=tw.Constraints(only_ours=True)).explain(P).fates
    assert {f.by for f in ours} == {"only_ours"}
