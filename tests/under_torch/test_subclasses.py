"""Tensors of several devices or lengths, and classes of tensors without a rule: each is refused
with what to do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

GEMM = torch.ops.tilewright.gemm
W = torch.ones(16, 8)


class Wrapped(torch.Tensor):
    """A class that no operator of ours is taught."""

    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments, keywords=None):
        return NotImplemented


@pytest.fixture(scope="module")
def distributed():
    """A `DTensor` of a group whose other process is only thought of."""
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    yield distribute_tensor(torch.ones(4, 16), mesh, [Shard(0)])
    torch.distributed.destroy_process_group()


@pytest.fixture(params=["distributed", "jagged", "strided", "wrapped"])
def refused(request):
    """A tensor, and what the refusal says."""
    torch._dynamo.reset()
    if request.param == "distributed":
        return request.getfixturevalue("distributed"), r"DTensor.*to_local\(\)"
    if request.param == "wrapped":
        return Wrapped(torch.ones(4, 16)), "the class Wrapped: pass the plain|without memory"
    layout = getattr(torch, request.param)
    x = torch.nested.nested_tensor([torch.ones(3, 16), torch.ones(5, 16)], layout=layout)
    return x, r"a nested tensor.*x\.offsets\(\) to a packed call"


CALLS = {
    "function": lambda x: tw.gemm(x, W),
    "function with out": lambda x: tw.gemm(x, W, out=torch.empty(4, 8)),
    "operator": lambda x: GEMM([x, W]),
    "operator with out": lambda x: GEMM.out([x, W], out=[torch.empty(4, 8)]),
    "dispatcher": lambda x: tw.default_dispatcher().run("gemm", x, W),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_way_to_call(call, refused):
    x, why = refused
    with torch.no_grad(), pytest.raises(BadArgument, match=why):
        CALLS[call](x)


@pytest.mark.parametrize("call", ["function", "operator"])
def test_with_gradients(call, refused):
    x, why = refused
    if isinstance(x, Wrapped):
        pytest.skip("torch itself cannot detach it")
    with pytest.raises(BadArgument, match=why):
        CALLS[call](x.detach().requires_grad_())


def test_compiled(refused):
    x, why = refused
    if isinstance(x, Wrapped) or (x.layout is torch.strided and x.is_nested):
        pytest.skip("torch.compile itself refuses it")
    compiled = torch.compile(tw.gemm, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=why):
        compiled(x, W)
