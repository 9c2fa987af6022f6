"""``DTensor``: along which dimensions calls are split over several devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright import ops
from tilewright.ops.nouns import Call, View

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "parallel_script.py"


def view(*shape: int) -> View:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return View(shape, tuple(strides[: len(shape)]), "fp32", 0, "cpu")


def ways(op: str, *inputs: View, named=None, **options) -> dict[str, str]:
    """For each label that a call may be split along: the dimension of each array, inputs first:
    ``.`` of one that is whole, ``+`` of one whose parts add up."""
    shards = ops.family(op).shards(Call(inputs, named or {}, None, options))
    if shards is None:
        return {}
    found = {}
    for label in shards.labels:
        summed = not any(label in one for one in shards.outputs)
        arrays = [
            str(one.index(label)) if label in one else "+" if summed and i in shards.added else "."
            for i, one in enumerate(shards.inputs)
        ]
        arrays += [str(one.index(label)) if label in one else "+" for one in shards.outputs]
        found[label] = " ".join(arrays)
    return found


A, B, BIAS = view(8, 16), view(16, 12), view(12)


def test_a_product_is_split_along_rows_columns_and_sums():
    assert ways("gemm", A, B) == {"m": "0 . 0", "k": "1 0 +", "n": ". 1 1"}


def test_rows_of_several_dimensions():
    assert ways("gemm", view(2, 4, 16), B) == {
        "batch 0": "0 . 0", "m": "1 . 1", "k": "2 0 +", "n": ". 1 2",
    }  # fmt: skip


def test_batches_and_what_they_share():
    batch = {"batch 0": "0 0 0", "m": "1 . 1", "k": "2 1 +", "n": ". 2 2"}
    assert ways("gemm", view(3, 8, 16), view(3, 16, 12)) == batch
    shared = ways("gemm", view(1, 8, 16), view(3, 16, 12))
    assert shared["batch 0"] == ". 0 0"
    summed = ways("gemm", view(3, 8, 16), view(3, 16, 12), batching="summed")
    assert summed["batch 0"] == "0 0 +"


def test_an_equation_says_the_dimensions():
    found = ways("gemm", view(2, 3, 4), view(2, 4, 5), equation="zmk,zkn->mn")
    assert found == {"z": "0 0 +", "m": "1 . 0", "k": "2 1 +", "n": ". 2 1"}


@pytest.mark.parametrize(
    ("chain", "operands", "along_k"),
    [
        ("bias", {"bias": BIAS}, "1 0 + +"),
        ("add", {"add": view(8, 12)}, "1 0 + +"),
        ("scale", {"scale": view(1)}, "1 0 . +"),
        ("col_scale+bias", {"col_scale": BIAS, "bias": BIAS}, "1 0 . + +"),
        ("bias+relu", {"bias": BIAS}, None),
        ("clamp", {"low": view(1), "high": view(1)}, None),
    ],
)
def test_sums_are_split_where_their_parts_add_up(chain, operands, along_k):
    found = ways("gemm", A, B, named=operands, epilogue=chain)
    assert found.get("k") == along_k
    assert found["n"].startswith(". 1") and found["m"].startswith("0 .")


def test_operands_of_an_epilogue_are_split_with_the_result():
    assert ways("gemm", A, B, named={"row_scale": view(8)}, epilogue="row_scale")["m"] == "0 . 0 0"
    assert ways("gemm", A, B, view(12), epilogue="bias")["n"] == ". 1 0 1"
    rows = {"row_scale": view(8)}  # of both dimensions together
    assert ways("gemm", view(2, 4, 16), B, named=rows, epilogue="row_scale") == {}


def test_products_that_are_computed_whole():
    assert ways("gemm", view(8, 12), view(12, 8), epilogue="swiglu") == {}
    assert ways("gemm", A, B, view(8, 1), view(1, 12), scale_a="1x16", scale_b="16x1") == {}
    assert ways("grouped_gemm", A, B) == {}


Q, KV = view(2, 5, 4, 16), view(2, 7, 2, 16)


def test_attention_is_split_along_batch_and_heads():
    assert ways("attention", Q, KV, KV, lse=True) == {"batch": "0 0 0 0 0", "heads": "2 2 2 2 1"}
    other = (view(2, 4, 5, 16), view(2, 2, 7, 16))
    assert ways("attention", other[0], *other[1:] * 2, layout="bhsd")["heads"] == "1 1 1 1"


def test_what_stands_beside_attention_is_split_with_it():
    named = {
        "bias": view(1, 4, 5, 7), "slopes": view(2, 4), "kv_used": view(2), "sinks": view(4),
    }  # fmt: skip
    found = ways("attention", Q, KV, KV, named=named)
    assert found == {"batch": "0 0 0 . 0 0 . 0", "heads": "2 2 2 1 1 . 0 2"}


@pytest.mark.parametrize(
    ("inputs", "named", "options"),
    [
        ((Q, KV, KV), {}, {"dropout": 0.5}),
        ((Q, KV), {}, {}),
        ((view(10, 4, 16),) * 3, {"q_offsets": view(3), "kv_offsets": view(3)}, {"max_q": 5}),
        ((Q, KV, KV), {"page_table": view(2, 3)}, {}),
        ((Q, view(1, 7, 2, 16), view(1, 7, 2, 16)), {}, {}),
    ],
    ids=["dropout", "latent", "packed", "pages", "broadcast"],
)
def test_attention_that_is_computed_whole(inputs, named, options):
    assert ways("attention", *inputs, named=named, **options) == {}


def test_gradients_of_attention_are_split_as_it_is():
    inputs = (Q, KV, KV, Q, view(2, 4, 5), Q)
    found = ways("attention_backward", *inputs)
    assert found == {"batch": "0 0 0 0 0 0 0 0 0", "heads": "2 2 2 2 1 2 2 2 2"}
    assert ways("attention_backward", *inputs, grads="dq+dv")["heads"] == "2 2 2 2 1 2 2 2"
    assert (
        ways("attention_backward", *inputs, named={"bias": view(1, 4, 5, 7)}, grads="dbias") == {}
    )


@pytest.mark.turns(32)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_compute_what_one_does(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), tmp_path / "meeting"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [each.communicate() for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], "\n".join(err for _, err in said)
    parts = ["products", "epilogues", "attentions", "layers", "compiled", "ported"]
    assert said[0][0].split() == parts
