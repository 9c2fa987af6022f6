"""Comparisons: what paired samples say, and what they must not say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import verify
from tilewright.arch import device
from tilewright.dtypes import dtype
from tilewright.errors import BadArgument, UnsupportedProblem, VerificationFailed
from tilewright.measure.compare import WARM_UP_ROUNDS, compare, judge
from tilewright.measure.contenders import Contender, contender, verified
from tilewright.ops.gemm import FAMILY, GemmProblem

H200 = device("h200_sxm")
KERNEL = "gemm_rcr_fp32_fp32_fp32_fp32_64x64x32_w4_s2_basic_tile_g8_direct_padmnk_al16"
times = st.floats(1.0, 1e6)


def samples(seed: int, ratio: float, count: int = 60) -> tuple[list[float], list[float]]:
    """Pairs of a drifting clock and noise of their own, the second `ratio` times the first."""
    rng = random.Random(seed)
    drift = [1 + 0.2 * i / count + rng.gauss(0, 0.02) for i in range(count)]
    first = [100 * d * rng.gauss(1, 0.01) for d in drift]
    second = [100 * ratio * d * rng.gauss(1, 0.01) for d in drift]
    return first, second


def test_a_kernel_is_neither_faster_nor_slower_than_itself():
    answers = [judge(*samples(seed, 1.0)).answer for seed in range(500)]
    wrong = sum(answer in ("faster", "slower") for answer in answers)
    assert wrong <= 0.05 * len(answers)
    assert answers.count("same") > 0.5 * len(answers)


@pytest.mark.parametrize(("ratio", "answer"), [(1.05, "faster"), (0.95, "slower")])
def test_a_difference_that_matters_is_found(ratio, answer):
    answers = [judge(*samples(seed, ratio)).answer for seed in range(100)]
    assert answers.count(answer) > 95


def test_a_difference_that_is_sure_but_small_is_the_same():
    first = [100.0 + i % 2 for i in range(60)]
    assert judge(first, [x * 1.002 for x in first]).answer == "same"
    assert judge(first, [x * 1.002 for x in first], margin=0.001).answer == "faster"


def test_few_noisy_pairs_decide_nothing():
    assert judge([1, 2, 1, 2, 1, 2], [2, 1, 2, 1, 2, 1]).answer == "undecided"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(times, times), min_size=6, max_size=80))
def test_swapping_the_two_swaps_the_answer(pairs):
    first, second = (list(side) for side in zip(*pairs, strict=True))
    one, other = judge(first, second), judge(second, first)
    swapped = {"faster": "slower", "slower": "faster", "same": "same", "undecided": "undecided"}
    assert other.answer == swapped[one.answer]
    low, high = one.interval
    assert low <= one.ratio <= high or len(pairs) % 2 == 0
    assert other.interval == pytest.approx((1 / high, 1 / low))


def test_pairs_are_pairs():
    with pytest.raises(BadArgument, match="pairs, six at least"):
        judge([1.0] * 6, [1.0] * 7)
    with pytest.raises(BadArgument, match="pairs, six at least"):
        judge([1.0] * 5, [1.0] * 5)


class Log:
    """A timer that only notes whose turn it was."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    def queue(self, call):
        self.turns.append(call())
        return 1.0

    def read(self, queued):
        return list(queued)

    def late(self, queued):
        return 0


def test_a_coin_says_who_goes_first_and_warm_up_is_not_counted():
    log = Log()
    found = compare(lambda: "a", lambda: "b", log, rounds=200)
    assert len(found.first_us) == len(found.second_us) == 200
    pairs = ["".join(log.turns[i : i + 2]) for i in range(0, len(log.turns), 2)]
    assert len(pairs) == WARM_UP_ROUNDS + 200 and set(pairs) == {"ab", "ba"}
    assert 60 < pairs.count("ab") < 150


@pytest.mark.parametrize("period", [2, 3, 4, 8])
def test_a_rhythm_of_the_device_favours_neither(period):
    class Rhythm(Log):
        def queue(self, call):
            self.turns.append(call())
            return 1.05 if len(self.turns) % period == 0 else 1.0

    answers = [compare(lambda: "a", lambda: "b", Rhythm()).answer for _ in range(200)]
    assert sum(answer in ("faster", "slower") for answer in answers) <= 8


def test_contenders_are_a_kernel_a_registry_a_store_or_the_vendor(tmp_path):
    from tilewright.compile import Store
    from tilewright.registry import Registry

    store = Store(tmp_path / "store")
    problem = GemmProblem(64, 64, 32, "fp32")
    registry = tmp_path / "r.json"
    Registry("r").register_all([FAMILY.parse_name(KERNEL)]).save(registry)
    assert contender(KERNEL, problem, H200, store).label == KERNEL
    assert KERNEL in contender(str(registry), problem, H200, store).label
    assert contender(str(tmp_path), problem, H200, store, KERNEL).config.name == KERNEL
    for word in ("vendor", "vendor.torch.mm"):
        assert contender(word, problem, H200, store).label == "torch.mm"
    with pytest.raises(UnsupportedProblem, match="no call of the vendor"):
        contender("vendor", GemmProblem(64, 64, 32, "fp32", epilogue="relu"), H200, store)
    with pytest.raises(BadArgument, match="no file or folder"):
        contender("missing.json", problem, H200, store)


def test_what_is_wrong_is_not_timed(tmp_path):
    torch = pytest.importorskip("torch")
    problem = GemmProblem(64, 64, 32, "fp32")
    config = FAMILY.parse_name(KERNEL)

    def mm(inputs, outputs):
        return torch.mm(inputs["A"], inputs["B"], out=outputs["C"])

    right = Contender("right", config, lambda *arrays: lambda: mm(*arrays))
    wrong = Contender("wrong", config, lambda *arrays: lambda: mm(*arrays).mul_(1.1))
    nothing = Contender("nothing", config, lambda inputs, outputs: lambda: outputs["C"])

    # CPU operands are NumPy's; torch shares their memory
    def on_torch(one: Contender) -> Contender:
        def bind(*arrays):
            call = one.bind(*({n: torch.from_numpy(x) for n, x in of.items()} for of in arrays))
            return lambda: call().numpy()

        return Contender(one.label, one.config, bind)

    operands = [verify.operands_of(problem, 0, "cpu")]
    assert len(verified([on_torch(right), on_torch(right)], problem, 0, operands, "cpu")) == 2
    for bad in (wrong, nothing):
        with pytest.raises(VerificationFailed, match=bad.label):
            verified([on_torch(right), on_torch(bad)], problem, 0, operands, "cpu")


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(32, 48, 64, "fp32"),
        GemmProblem(32, 48, 64, "bf16", layout="crr"),
        GemmProblem(32, 48, 64, "fp16", batch=3, batching="strided"),
        GemmProblem(32, 48, 64, "int8"),
    ],
    ids=str,
)
def test_the_vendors_call_computes_the_problem(problem):
    torch = pytest.importorskip("torch")
    from tilewright import ops

    generator = torch.Generator().manual_seed(3)
    made = {
        o.name: torch.randint(-4, 5, o.shape, generator=generator).to(
            getattr(torch, dtype(o.dtype).torch)
        )
        for o in FAMILY.operands(problem)
    }
    outputs = {"C": made.pop("C")}
    (bind,) = ops.family("gemm").vendor(problem).values()
    assert torch.equal(bind(made, outputs)().double(), made["A"].double() @ made["B"].double())


BLOCKS = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "tf32", "dtype_a": "fp32"},
        {"epilogue": "relu"},
        {"layout": "rcc"},
        {"dtype_a": "int8", "layout": "rrr"},
        {"dtype_a": "e4m3fn", "epilogue": "bias"},
        {"dtype_a": "e4m3fn", "scale_a": "1x128"},
        {**BLOCKS, "m": 258},
        {**BLOCKS, "k": 640},
        {**BLOCKS, "epilogue": "relu"},
        {**BLOCKS, "dtype_a": "bf16"},
    ],
    ids=str,
)
def test_where_torch_has_no_such_call_there_is_no_vendor(fields):
    sizes = {"m": 256, "n": 256, "k": 512}
    assert FAMILY.vendor(GemmProblem(**{**sizes, **fields})) == {}


@pytest.mark.parametrize("strides", [(), (1, 8)], ids=["rows", "columns"])
def test_torch_gets_block_scales_column_by_column(monkeypatch, strides):
    torch = pytest.importorskip("torch")
    seen = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, *scales, **options: seen.extend(scales))
    problem = GemmProblem(8, 256, 512, dtype_c="bf16", **BLOCKS, strides_sa=strides)
    ((name, bind),) = FAMILY.vendor(problem).items()
    scales = verify.operands_of(problem, 0, "cpu").inputs
    inputs = [torch.from_numpy(scales[name]) for name in ("scale_a", "scale_b")]
    given = {"A": None, "B": None, "scale_a": inputs[0], "scale_b": inputs[1]}
    bind(given, {"C": torch.empty(0, dtype=torch.bfloat16)})()
    assert name == "torch._scaled_mm"
    assert [tuple(x.stride()) for x in seen] == [(1, 8), (1, 4)]
    assert all(map(torch.equal, seen, inputs))
