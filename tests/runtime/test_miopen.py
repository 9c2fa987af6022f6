"""MIOpen through its own functions, without a GPU: what it is told, what it computes in memory of
the host, and what becomes of its refusals."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from fake_miopen import FakeMiopen, Offer  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402
from tilewright.arch import device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, LaunchFailed, LibraryRefused, UnknownName  # noqa: E402
from tilewright.ops.conv import FAMILY, ConvProblem  # noqa: E402
from tilewright.ops.conv.geometry import channels_first  # noqa: E402
from tilewright.ops.library import library_of  # noqa: E402
from tilewright.ops.library_engine import Offered, Solver  # noqa: E402
from tilewright.runtime import blaslt, libraries, miopen, offers  # noqa: E402
from tilewright.tables.row import Row  # noqa: E402
from tilewright.tables.table import Table  # noqa: E402

GPU = "mi300x"
MI300X, GFX942 = device(GPU), tw.arch.arch("gfx942")
PLAIN, LARGE = Offer(85), Offer(137, workspace=3 << 20, repeats=False)
P = ConvProblem(2, 8, 16, (9, 7), (3, 3), pad=(1, 1), dtype="fp32")
DIRECTIONS = ("forward", "data", "weights")


def first(p):
    """The same with channels first."""
    return replace(p, **{f"{name}_strides": channels_first(p.shape_of(name)) for name in "xwy"})


@pytest.fixture
def fake():
    return FakeMiopen(replace(PLAIN), replace(LARGE))


def question(p):
    return FAMILY.library_query(p, GFX942, "miopen3")


def named(p, offer=PLAIN, release=(4, 0)):
    found = Offered(Solver(offer.number, release, not offer.repeats), offer.workspace)
    return FAMILY.library_config(p, "miopen3", found)


def asked_by(p, offer=PLAIN, release=(4, 0)):
    (step,) = FAMILY.launch(named(p, offer, release), p, MI300X).steps
    return step.theirs


# --- questions --------------------------------------------------------------------------------


def test_solvers_are_offered_by_number_and_release(fake, library, driver):
    found = library.offered(driver, 0, question(P), 8)
    assert found == [Offered(Solver(85, (4, 0)), 0), Offered(Solver(137, (4, 0), True), 3 << 20)]
    assert len(library.offered(driver, 0, question(P), 1)) == 1
    assert not fake.living and fake.streams == [0] and not fake.compiled


@pytest.mark.parametrize(
    "offer", [Offer(1, 2), Offer(1, 3), Offer(1, workspace=(1 << 30) + 1), None], ids=str
)
def test_solvers_that_may_be_too_far_off_or_cannot_run_are_left_out(driver, offer):
    """Fourier's and Winograd's transforms; more memory than a name says; none at all."""
    fake = FakeMiopen(*(() if offer is None else (offer,)))
    with pytest.raises(LibraryRefused, match="miopen3 has no solver for y of x 2×8×9×7"):
        fake.opened().offered(driver, 0, question(P), 8)
    assert not fake.living


@pytest.mark.parametrize("last", [True, False])
def test_it_is_told_in_its_own_numbers(fake, library, driver, last):
    p = ConvProblem(2, 8, 6, (9,), (1,), groups=2, stride=(2,), dtype="fp16")
    ready = library.prepared(driver, 0, asked_by(p if last else first(p)))
    context = miopen.Context.from_address(ready.address)
    told = [fake.living[at].said for at in (context.first, context.second, context.made)]
    w, x, y = told
    assert {one["dtype"] for one in told} == {(0,)}
    assert [one["shape"] for one in (x, w, y)] == [(2, 8, 1, 9), (6, 4, 1, 1), (2, 6, 1, 5)]
    # A filter of one element lies as x and y do.
    assert x["strides"] == ((72, 1, 72, 8) if last else (72, 9, 9, 1))
    assert w["strides"] == ((4, 1, 4, 4) if last else (4, 1, 1, 1))
    assert fake.living[context.convolution].said == {
        0: (0,), 1: (1,), "pad": (0, 0), "stride": (1, 2), "dilation": (1, 1), "mode": (0,),
        "groups": (2,),
    }  # fmt: skip


def test_sizes_are_those_of_the_header():
    assert ctypes.sizeof(miopen._Offer) == 32


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"epilogue": "relu"}, "epilogue"),
        ({"dtype": "fp16", "dtype_out": "fp32"}, "dtype"),
        ({"precision": "tf32"}, "precision"),
        ({"pad_after": (1, 2)}, "extent"),
        ({"n": 0}, "extent"),
        ({"n": 1 << 24}, "extent"),
        ({"alignment": 8}, "vector_width"),
        ({"x_strides": (1008, 1, 112, 16)}, "layout"),  # gaps
        ({"x_strides": (504, 63, 7, 1)}, "layout"),  # another than that of w and y
    ],
    ids=str,
)
def test_what_it_is_not_asked_for_says_why(fields, rule):
    p = replace(P, **fields)
    asked = question(p)
    assert not asked and asked.rule == rule and asked.reason in offers.why_not(FAMILY, p, GFX942)
    if rule not in ("epilogue", "dtype", "precision"):  # which a name says
        assert FAMILY.supports(named(P), p, GFX942).rule == rule


def test_it_is_amds_and_computes_convolutions_alone():
    sm_90 = tw.arch.arch("sm_90")
    assert "MIOpen is AMD's" in FAMILY.library_query(P, sm_90, "miopen3").reason
    assert "MIOpen is AMD's" in FAMILY.judge(named(P), sm_90).reason
    assert FAMILY.judge(named(P), GFX942) and "vendor" in FAMILY.pipelines(GFX942)
    for p in (tw.GemmProblem(64, 64, 64), tw.AttentionProblem(2, 4, 5, 7, 16)):
        assert ops.family(p.family).library_query(p, GFX942, "miopen3").rule == "family"


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("offer", [PLAIN, LARGE])
def test_a_name_says_all_that_fixes_a_solver(direction, offer):
    p = replace(P, direction=direction)
    config = named(p, offer)
    assert FAMILY.parse_name(config.name) == config and library_of(config) == "miopen3"
    launch = FAMILY.launch(config, p, MI300X)
    (step,) = launch.steps
    assert step.theirs.engine == Solver(offer.number, (4, 0), not offer.repeats)
    assert offer.workspace <= step.theirs.workspace < offer.workspace + (2 << 20)
    assert FAMILY.supports(config, p, GFX942) and FAMILY.judge(FAMILY.interpreted(config), GFX942)
    assert bool(FAMILY.repeats(config)) == offer.repeats and not launch.capturable
    assert not FAMILY.sources(config, GFX942)


@pytest.mark.parametrize(
    "name",
    [
        "conv_forward_2d_fp32_fp32_vendor_miopen3_85_v4-0_ws3_al16",  # no power of two
        "conv_forward_2d_fp32_fp32_vendor_miopen3_85_ws0_al16",
        "conv_forward_2d_fp32_fp32_vendor_miopen3_85_v4_ws0_al16",
        "conv_forward_2d_fp32_fp32_vendor_miopen3_85_v04-0_ws0_al16",
        "conv_forward_2d_fp32_fp32_vendor_miopen3_85_k2-5_ws0_al16",
        "conv_forward_2d_fp32_fp32_vendor_cudnn9_85_v4-0_ws0_al16",
        "attention_fp16_fp16_fp16_d16x8_none_vendor_miopen3_85_v4-0_ws0",
        "attention_backward_fp16_fp16_d16x8_none_vendor_miopen3_85_v4-0_ws0_g-dq-dk-dv",
    ],
)
def test_other_names_are_refused(name):
    family = name.split("_fp")[0].removesuffix("_forward_2d")
    with pytest.raises(UnknownName):
        ops.family(family).parse_name(name)


def test_a_number_that_no_name_can_say_is_refused():
    with pytest.raises(BadArgument, match="no name can say"):
        Solver(1 << 31, (4, 0))


# --- making ready -------------------------------------------------------------------------------


def test_what_it_describes_lives_as_long_as_it_does(fake, library, driver):
    ready = library.prepared(driver, 0, asked_by(P, LARGE))
    context = miopen.Context.from_address(ready.address)
    assert (context.number, context.workspace) == (137, 4 << 20) and fake.compiled == [(1, 137)]
    assert fake.living
    del ready, context
    gc.collect()
    assert not fake.living


@pytest.mark.parametrize(
    ("change", "asked", "says"),
    [
        ({}, (P, Offer(404)), r"does not offer solver 404_v4-0 for y of x"),
        ({}, (P, PLAIN, (3, 0)), r"is 3\.4\.0 here, and solver 85 was tuned with 3\.3\.0"),
        ({"repeats": False}, (P, PLAIN), "does not offer solver 85_v4-0 for"),
        ({}, (P, Offer(85, repeats=False)), "solver 85 for .* with sums that repeat"),
        ({"algorithm": 3}, (P, PLAIN), "does not offer solver 85_v4-0"),
        ({"workspace": 1 << 29}, (P, PLAIN), r"536870912 bytes of workspace .* solver 85_v4-0"),
        ({"compiles": False}, (P, PLAIN), r"refused to compile solver 85 .*BadParm \(3\)"),
    ],
    ids=str,
)
def test_a_solver_that_is_not_the_one_named_is_refused(fake, library, driver, change, asked, says):
    fake.offers[0] = replace(fake.offers[0], **change)
    with pytest.raises(LibraryRefused, match=says):
        library.prepared(driver, 0, asked_by(*asked))
    assert not fake.living
    with library._used:  # it is not left taken
        pass


def test_a_library_of_another_major_version_is_refused(fake):
    fake.version = (2, 20, 0)
    with pytest.raises(LibraryRefused, match="is version 2, not 3: install ROCm 6 or 7"):
        fake.opened()
    assert libraries.names("miopen") == ["miopen3"]


# --- calls -------------------------------------------------------------------------------------


LAYERS = {
    "padded": P,
    "channels first": first(P),
    "strided, dilated, grouped": replace(
        P, groups=2, stride=(2, 1), dilation=(1, 2), pad=(0, 2), pad_after=(0, 2)
    ),
    "depthwise": first(replace(P, k=8, groups=8)),
    "one dimension": ConvProblem(2, 4, 6, (11,), (3,), stride=(2,), pad=(1,), dtype="fp32"),
    "three": ConvProblem(1, 3, 4, (4, 5, 6), (2, 3, 1), pad=(0, 1, 0), dtype="fp32"),
    "1×1": ConvProblem(2, 8, 16, (5, 5), (1, 1), dtype="fp32"),
}


def run(gpu, p, offer=PLAIN, seed=3):
    """A call's result, and what it should be."""
    inputs, out = verify.make_operands(p, seed=seed)
    arrays, out = [torch.from_numpy(one) for one in inputs], torch.from_numpy(out)
    out.fill_(torch.nan)
    gpu.dispatcher.run_named(named(p, offer).name, *arrays, out=out, **FAMILY.options(p))
    (wanted,) = verify.reference(p, inputs).values()
    return out.numpy(), wanted


@pytest.mark.grid(7)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_results_are_right(gpu, fake, direction, layer):
    p = replace(LAYERS[layer], direction=direction)
    for offer in (PLAIN, LARGE, LARGE):
        found, wanted = run(gpu, p, offer)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert [one["workspace"] for one in fake.calls] == [0, 4 << 20, 4 << 20]
    assert [one["convolution"][1] for one in fake.calls] == [(1,), (0,), (0,)]
    assert not gpu.driver.launches


def test_each_stream_has_a_handle_for_which_each_solver_is_compiled(gpu, fake):
    used = []
    fake.offers.append(Offer(99))
    for stream in (0, 7, 0x5000, 7, 0, 0x5000):
        gpu.stream.now = stream
        for offer in (PLAIN, Offer(99)):
            run(gpu, P, offer)
        used.append(fake.calls[-1]["handle"])
    assert fake.streams == [0, 7, 0x5000] and used == [1, 2, 3, 2, 1, 3]
    assert sorted(fake.compiled) == [(h, n) for h in (1, 2, 3) for n in (85, 99)]


def test_too_many_streams_are_refused(gpu, fake):
    for stream in range(blaslt.STREAMS):
        gpu.stream.now = stream * 256
        run(gpu, P)
    gpu.stream.now = 1
    with pytest.raises(LibraryRefused, match="64 streams have one: use fewer streams"):
        run(gpu, P)


def test_a_status_of_a_call_is_the_librarys(gpu, fake):
    fake.status = 3
    with pytest.raises(LaunchFailed, match=r"miopen3 for y of x .* in fp32: miopenStatusBadParm"):
        run(gpu, P)
    fake.status = 0
    run(gpu, P)


def test_a_handle_is_used_by_one_thread_at_a_time(gpu, fake):
    wrong = []

    def work(seed):
        for _ in range(10):
            found, wanted = run(gpu, P, seed=seed)
            if not np.allclose(found, wanted, 1e-5, 1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong and not fake.mixed and len(fake.calls) == 40
    assert stand_in_gpu.CURRENT_STREAM in fake.streams


# --- choosing -----------------------------------------------------------------------------------


def test_constraints_refuse_what_it_does_not_state(library, driver, monkeypatch):
    monkeypatch.setattr(libraries, "present", lambda kind: {"miopen": library}[kind])
    configs, why = offers.offered_configs(driver, 0, FAMILY, P, GFX942, 8)
    assert configs == [named(P), named(P, LARGE)] and not why
    registry = tw.Registry("r").register_all(configs)

    def refused(**constraints):
        dispatcher = Dispatcher(registry, MI300X, constraints=tw.Constraints(**constraints))
        return {f.name: f.by for f in dispatcher.explain(P).fates if f.fate == "refused"}

    every = [config.name for config in configs]
    assert refused(deterministic=True) == {every[1]: "deterministic"}
    assert refused(max_workspace=0) == {every[1]: "max_workspace"}
    assert refused(only_ours=True) == dict.fromkeys(every, "only_ours")
    assert refused(graph_capturable=True) == dict.fromkeys(every, "graph_capturable")
    assert not refused()


def test_it_stands_in_for_no_kernel_that_is_being_built(monkeypatch):
    """It would compile first."""
    planner = Dispatcher(device=MI300X).planner
    chosen = planner.plan(P, MI300X)
    for offer, stands in ((named(P), False), (chosen.config, True)):
        monkeypatch.setattr(planner, "_offers", lambda *asked, offer=offer: offer)
        another = replace(chosen, config=FAMILY.interpreted(named(P)))
        first = next(planner.stand_ins(another))
        assert first.config != named(P)
        assert ("first algorithm of the vendor's library" in first.reason) == stands


def test_a_tuned_table_chooses_a_solver(gpu, fake):
    row = Row(MI300X, P, named(P).name, (), 10.0, (9.9, 10.1), 0.5)
    dispatcher = Dispatcher(device=MI300X, tables=Table.of([row], "mine.twt"))
    x, w = (torch.from_numpy(one) for one in verify.make_operands(P, seed=3)[0])
    dispatcher.run("conv", x, w, pad=(1, 1))
    assert library_of(dispatcher.select(P).config) == "miopen3" and len(fake.calls) == 1


def test_a_solver_of_another_release_is_passed_over(gpu, fake, caplog):
    older, here = named(P, release=(3, 0)), named(P)
    registry = tw.Registry("r").register_all([older], priority=1).register_all([here])
    dispatcher = Dispatcher(registry, MI300X)
    x, w = (torch.from_numpy(one) for one in verify.make_operands(P, seed=3)[0])
    dispatcher.run("conv", x, w, pad=(1, 1))
    assert len(fake.calls) == 1 and "was tuned with 3.3.0: tune anew" in caplog.text
    fates = {f.name: f for f in dispatcher.explain(P).fates}
    assert (fates[older.name].fate, fates[older.name].by) == ("refused", "library")
