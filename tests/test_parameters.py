"""How large a kernel's parameters are, before it is built."""

from __future__ import annotations

import pytest

from tilewright.errors import BadArgument
from tilewright.parameters import MAX_PARAMETER_BYTES, pack, parameter_bytes


def sized(*kinds: str, maps: bool = True, flags: int = 1) -> int:
    return parameter_bytes([("x", kind) for kind in kinds], maps, flags)


def test_parameters_are_aligned_to_their_size_and_two_addresses_follow():
    assert sized() == 16
    assert sized("*bf16") == 8 + 16
    assert sized("i8", "i32", "i8", "fp64", "i16") == 1 + 3 + 4 + 1 + 7 + 8 + 2 + 6 + 16


def test_a_descriptor_is_a_tensor_map_with_sizes_and_strides():
    assert sized("tensordesc<bf16[128, 64]>") == 128 + 2 * 4 + 2 * 8 + 16
    assert sized("i32", "tensordesc<fp8e4nv[1, 2, 4, 8, 16]>") == 64 + 128 + 20 + 4 + 40 + 16


def test_without_tensor_maps_a_descriptor_is_a_pointer_with_sizes_strides_and_flags():
    kind = "tensordesc<bf16[128, 64]>"
    assert sized(kind, maps=False, flags=1) == 8 + 4 * 8 + 1 + 3 + 2 * 4 + 4 + 2 * 8 + 16
    assert sized(kind, *["i1"] * 3, maps=False) == sized(kind, maps=False) + 8


def test_a_kernel_may_have_as_many_parameters_as_fit():
    assert sized(*["i64"] * 510) == MAX_PARAMETER_BYTES == 4096


@pytest.mark.parametrize("kind", ["fp16", "i128", "bf16", ""])
def test_an_unknown_type_is_named(kind):
    with pytest.raises(BadArgument, match=f"no scalar parameter has type '{kind}'; known: i1, i8"):
        sized(kind)


def test_a_value_that_a_type_does_not_hold_is_refused():
    assert pack("u16", 65535) == b"\xff\xff"
    with pytest.raises(BadArgument, match="65536 is not a value of type u16"):
        pack("u16", 65536)
