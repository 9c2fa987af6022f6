"""CK Tile's examples 09_topk_softmax and 13_moe_sorting."""

from __future__ import annotations

from tilewright.declared._ck import Program, Said, contiguous, driver, only, stride

ACTIVATIONS = ("softmax", "sigmoid")


def _topk_softmax(said: Said) -> dict[str, str]:
    only(said, "weights are fp32 here", pr_w=("fp32",))
    only(said, "scores are softmax or sigmoid", activation=ACTIVATIONS)
    contiguous(said, said["k"], "st_o")
    found = {"rows": said["t"], "experts": said["e"], "k": said["k"], "dtype": said["pr_i"]}
    found |= {"scoring": said["activation"]}
    return found | stride(said, "st_i", said["e"], "logits_stride")


def _moe_sorting(said: Said) -> dict[str, str]:
    only(said, "ids are int32, weights fp32", pr_i=("int32",), pr_w=("fp32",))
    nothing = {"moe_buf_size": ("-1", "0"), "moe_buf_interm_dim": ("0",)}
    only(said, "nothing else is filled here", **nothing)
    only(said, "the number of tokens is not read from memory here", local_t=("-1",))
    found = {"tokens": said["t"], "k": said["k"], "block": said["unit"], "has_weights": "1"}
    found |= {"id_dtype": said["pr_i"], "experts": said["e"]}
    if said["local_eid"] != "-1":  # the other experts' rows go nowhere
        local = str(len(said["local_eid"].split(",")))
        found |= {"has_expert_map": "1", "global_experts": said["e"], "experts": local}
    return found


TOPK_SOFTMAX = driver(
    Program(
        ("tile_example_topk_softmax",),
        {
            "pr_i": "fp16", "pr_w": "fp32", "t": "32", "e": "8", "k": "2", "st_i": "-1",
            "st_o": "-1", "activation": "softmax",
        },
        _topk_softmax,
    )
)  # fmt: skip
MOE_SORTING = driver(
    Program(
        ("tile_example_moe_sorting",),
        {
            "pr_i": "int32", "pr_w": "fp32", "t": "128", "e": "8", "k": "4", "unit": "32",
            "moe_buf_size": "0", "moe_buf_interm_dim": "0", "local_t": "-1", "local_eid": "-1",
        },
        _moe_sorting,
        ("moe_buf_elem_bytes", "ci", "dispatch"),
    )
)  # fmt: skip
