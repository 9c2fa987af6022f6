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
    with pytest.raises(BadArgument, match="is no element type"):
        GemmProblem(8, 16, 32, dtype=said)


def test_a_type_is_said_once():
    with pytest.raises(BadArgument, match="dtype or dtype_a, not both"):
        GemmProblem(8, 16, 32, dtype="fp16", dtype_a="bf16")
