"""What an operand may be: one clear error for anything without elements of ours at an address."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright import arrays
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.ops.nouns import Operand

torch = pytest.importorskip("torch")


class Broken:
    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        raise KeyError("nothing here")


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(4, 4)


OPERANDS = {
    "meta": (lambda: torch.zeros(4, 4, device="meta"), "is a meta tensor, .*pass one on a GPU"),
    "fake": (fake, "is a FakeTensor without memory of its own"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "has the layout sparse_coo; .*to_dense"),
    "csr": (lambda: torch.eye(4).to_sparse_csr(), "has the layout sparse_csr; .*to_dense"),
    "mkldnn": (lambda: torch.eye(4).to_mkldnn(), "has the layout mkldnn; .*to_dense"),
    "nested": (lambda: torch.nested.nested_tensor([torch.eye(4)]), "is a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.eye(4)], layout=torch.jagged),
        "is a nested tensor",
    ),
    "negated": (
        lambda: torch.zeros(4, 4, dtype=torch.complex64).conj().imag,
        "is a view .*resolve_neg",
    ),
    "complex": (lambda: torch.zeros(4, 4, dtype=torch.complex64), ": elements of type torch.comp"),
    "broken": (Broken, r"is a Broken whose __dlpack__ fails \(KeyError: 'nothing here'\)"),
    "list": (lambda: [[1.0]], "is a list; pass a torch tensor"),
    "masked": (
        lambda: np.ma.masked_equal(np.eye(4, dtype="float32"), 0),
        "is a NumPy masked array.*filled",
    ),
    "objects": (lambda: np.array([[{}]]), ": elements of type object are not supported"),
    "big-endian": (lambda: np.zeros((4, 4), ">f4"), ": elements of type >f4 are not supported"),
}


@pytest.mark.parametrize(("make", "says"), OPERANDS.values(), ids=OPERANDS)
def test_an_operand_without_elements_of_ours_is_named_with_what_to_do(make, says):
    good, bad = torch.zeros(4, 4), make()
    run = Dispatcher(device="h200_sxm").run
    with pytest.raises(BadArgument, match=f"^operand 1:? ?{says}"):
        run("gemm", bad, good)
    with pytest.raises(BadArgument, match=f"^operand 2:? ?{says}"):
        run("gemm", good, bad)
    with pytest.raises(BadArgument, match=f"^out:? ?{says}"):
        run("gemm", good, good, out=bad)


def test_inside_vmap_a_tensor_has_no_memory():
    with pytest.raises(BadArgument, match=r"^X is a Tensor without memory of its own .*vmap"):
        torch.func.vmap(lambda x: arrays.adopt(x, "X"))(torch.zeros(3, 4))


def test_an_empty_tensor_needs_no_memory():
    nothing = torch.zeros(0, 4)
    assert arrays.adopt(nothing, "X") is nothing


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (torch.float16, "fp16"),
        (torch.float8_e4m3fn, "e4m3fn"),
        (np.float32, "fp32"),
        (np.dtype("int8"), "int8"),
        (ml_dtypes.bfloat16, "bf16"),
        ("fp16", "fp16"),
    ],
)
def test_a_problem_takes_the_element_types_of_torch_and_numpy(said, name):
    plain = GemmProblem(8, 16, 32, dtype_a=name)
    assert GemmProblem(8, 16, 32, dtype_a=said) == plain
    assert GemmProblem(8, 16, 32, dtype=said) == plain
    assert GemmProblem(8, 16, 32, dtype=said, dtype_c=plain.dtype_c) == plain
    if name in ("fp16", "bf16"):
        stacked = GroupedGemmProblem("contiguous", 2, 8, 16, 32, dtype_a=name)
        assert GroupedGemmProblem("contiguous", 2, 8, 16, 32, dtype=said) == stacked


@pytest.mark.parametrize("said", [torch.complex64, np.float64, float, 3, object()])
def test_what_is_no_element_type_is_an_error(said):
    with pytest.raises(BadArgument, match="is not an element type"):
        GemmProblem(8, 16, 32, dtype=said)


def test_a_type_is_said_once():
    with pytest.raises(BadArgument, match="dtype or dtype_a, not both"):
        GemmProblem(8, 16, 32, dtype="fp16", dtype_a="bf16")


# --- made-up inputs -----------------------------------------------------------------------------

DRAWN = (
    Operand("normal", (64, 32), (32, 1), "fp32"),
    Operand("columns", (64, 32), (1, 64), "bf16"),
    Operand("even", (4096,), (1,), "fp32", values=(0.5, 2.0)),
    Operand("integers", (4096,), (1,), "int8"),
    Operand("made", (4,), (1,), "int32", values=lambda seed: [seed, 1, 2, 3]),
    Operand("shared", (3, 8), (0, 1), "fp32"),
    Operand("listed", (3, 8, 8), (0, 8, 1), "fp32", pointers=True),
)


def drawn(seed):
    return arrays.Random(seed).independent(DRAWN)


def test_inputs_lie_and_are_spread_as_their_operands_say():
    found = drawn(5)
    assert list(found) == [one.name for one in DRAWN]
    for one in DRAWN[:-1]:
        assert arrays.view(found[one.name]).strides == one.strides, one.name
        assert arrays.view(found[one.name]).dtype == one.dtype
    assert 0.9 < found["normal"].std() < 1.1 and abs(found["normal"].mean()) < 0.1
    assert 0.5 <= found["even"].min() < 0.6 and 1.9 < found["even"].max() <= 2.0
    assert (found["integers"].min(), found["integers"].max()) == (-128, 127)
    assert found["made"][1:].tolist() == [1, 2, 3]
    assert (found["shared"][0] == found["shared"][2]).all() and found["shared"][0].std() > 0
    listed = found["listed"].arrays
    assert len(listed) == 3 and not np.array_equal(listed[0], listed[1])


def test_the_same_seed_makes_the_same_inputs_and_another_others():
    one, again, other = drawn(5), drawn(5), drawn(6)
    for name in one:
        first, second, third = (arrays.stacked(made[name]) for made in (one, again, other))
        assert np.array_equal(first, second) and not np.array_equal(first, third), name


def test_operands_alike_are_drawn_apart():
    pair = [Operand(name, (64,), (1,), "fp32") for name in ("a", "b")]
    rng = arrays.Random(5)
    a, b = rng.independent(pair).values()
    assert not np.array_equal(a, b)
    later, latest = rng.independent(pair).values()
    for one in (a, b):
        assert not np.array_equal(one, later) and not np.array_equal(one, latest)


def test_values_that_a_family_makes_are_rounded_and_lie_as_its_operand_does():
    values = np.array([[1.0, 1 / 3], [2.0, 1e-3]])
    made = arrays.Random(5).filled(Operand("x", (2, 2), (1, 2), "bf16"), values)
    assert arrays.view(made).strides == (1, 2) and made.dtype == ml_dtypes.bfloat16
    assert np.array_equal(made, values.astype(ml_dtypes.bfloat16))


def test_a_familys_own_draws_are_those_of_the_seed():
    first, again, other = (arrays.Random(seed).numpy.integers(2**31) for seed in (5, 5, 6))
    assert first == again != other
    rng = arrays.Random(5)
    assert rng.numpy is rng.numpy  # goes on, and does not begin again


def test_a_copy_lies_as_the_array_does_and_is_put_back():
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    kept = arrays.copied(x)
    x[...] = 0
    assert kept.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert kept.strides == x.strides
    arrays.overwrite(x, kept)
    assert np.array_equal(x, kept)
    listed = drawn(5)["listed"]
    kept = arrays.copied(listed)
    arrays.poison(listed)
    assert np.isnan(arrays.stacked(listed)).all()
    arrays.overwrite(listed, kept)
    assert np.array_equal(arrays.stacked(listed), arrays.stacked(kept))
    assert np.array_equal(arrays.stacked(kept), arrays.stacked(drawn(5)["listed"]))
