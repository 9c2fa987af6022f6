"""Spaces, whatever the family: wildcards, constraints, duplicates, files and their errors."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument, BadFile, EmptySpace, UnknownName
from tilewright.ops.formats import Formats
from tilewright.space import KernelSpace
from tilewright.space_file import load_space, space_to_json

SM90 = arch("sm_90")
GFX942 = arch("gfx942")


def space(constraints=None, linked=None, **axes):
    return KernelSpace("gemm", axes, constraints or {}, linked or {})


def test_an_axis_left_out_has_the_familys_default():
    (config,) = space().expand(SM90).configs
    defaults = ops.family("gemm").axes()
    assert (config.tile_m, config.group_m) == (defaults["tile_m"], defaults["group_m"])


def test_configs_come_in_the_order_of_the_axes_each_once():
    found = space(tile_n=[128, 64], tile_m=[64, 128, 64]).expand(SM90)
    assert [(c.tile_m, c.tile_n) for c in found.configs] == [
        (64, 128),
        (64, 64),
        (128, 128),
        (128, 64),
    ]


@pytest.mark.parametrize("wildcard", ["*", -1])
def test_a_wildcard_is_what_the_architecture_suggests(wildcard):
    found = space(num_stages=[wildcard], tile_m=[64], tile_n=[64]).expand(SM90)
    assert [c.num_stages for c in found.configs] == list(SM90.num_stages)


def test_a_wildcard_adds_to_the_values_beside_it_without_repeating_them():
    values = [SM90.num_stages[0], "*", 1]
    found = space(num_stages=values, tile_m=[64], tile_n=[64]).expand(SM90)
    assert {c.num_stages for c in found.configs} == {1, *SM90.num_stages}
    assert found.duplicates == 0


def test_a_wildcard_where_it_has_no_meaning():
    with pytest.raises(BadArgument, match="dtype_b"):
        space(dtype_b=["*"]).expand(SM90)


def test_false_is_not_a_wildcard():
    assert [c.pad_m for c in space(pad_m=[False]).expand(SM90).configs] == [False]


def test_what_is_dropped_says_by_which_rule():
    found = space(tile_m=[64, 96], num_warps=[8, 6]).expand(SM90)
    assert len(found.configs) == 1
    assert found.summary() == {"tile": 2, "warps": 1}
    dropped = {(d.fields["tile_m"], d.fields["num_warps"]): d.verdict.rule for d in found.dropped}
    assert dropped == {(96, 8): "tile", (96, 6): "tile", (64, 6): "warps"}
    assert all(d.verdict.reason for d in found.dropped)


def test_contradicting_fields_are_dropped_as_inexpressible():
    found = space(dtype_a=["bf16", "int8"], dtype_c=["bf16"]).expand(SM90)
    assert found.summary() == {"expressible": 1}
    assert [c.dtype_a for c in found.configs] == ["bf16"]


def test_combinations_that_say_the_same_config_are_counted_not_repeated():
    found = space(dtype_a=["fp8", "e4m3fn", "bf16"]).expand(SM90)
    assert [c.dtype_a for c in found.configs] == ["e4m3fn", "bf16"]
    assert found.duplicates == 1


def test_a_constraint_drops_by_its_own_name():
    square = {"square": lambda c: c.tile_m == c.tile_n}
    found = space(square, tile_m=[64, 128], tile_n=[64, 128]).expand(SM90)
    assert {(c.tile_m, c.tile_n) for c in found.configs} == {(64, 64), (128, 128)}
    assert found.summary() == {"square": 2}


def test_a_constraint_is_asked_about_legal_configs_only():
    asked = []
    space({"ask": lambda c: asked.append(c) or True}, tile_m=[64, 96]).expand(SM90)
    assert [c.tile_m for c in asked] == [64]


def test_linked_axes_do_not_cross():
    pairs = {("pipeline", "num_stages"): [("basic", 2), ("tma", 4)]}
    found = space(linked=pairs, tile_m=[64, 128]).expand(SM90)
    assert [(c.tile_m, c.pipeline, c.num_stages) for c in found.configs] == [
        (64, "basic", 2),
        (64, "tma", 4),
        (128, "basic", 2),
        (128, "tma", 4),
    ]


@pytest.mark.parametrize("this", [SM90, GFX942], ids=lambda a: a.name)
def test_every_combination_is_accounted_for(this):
    axes = {
        "dtype_a": ["fp8", "e4m3fn", "e4m3fnuz", "bf16", "int8"],
        "dtype_c": ["", "bf16"],
        "tile_m": ["*"],
        "tile_n": [64, 96, 256],
        "num_warps": [2, 4, 8, 64],
        "pipeline": ["basic", "tma"],
    }
    found = space({"half": lambda c: c.tile_m != 64}, **axes).expand(this)
    wild = len(ops.family("gemm").wildcard("tile_m", this))
    product = 5 * 2 * wild * 3 * 4 * 2
    assert len(found.configs) + len(found.dropped) + found.duplicates == product
    assert sum(found.summary().values()) == len(found.dropped)
    assert len(set(found.configs)) == len(found.configs)
    assert found.duplicates > 0
    assert {"expressible", "half", "tile", "registers"} <= set(found.summary())


def test_expanding_twice_gives_the_same():
    declared = space(tile_m=["*"], num_warps=["*"])
    assert declared.expand(SM90) == declared.expand(SM90)


def test_an_empty_space_is_an_error_with_counts_and_reasons():
    with pytest.raises(EmptySpace) as error:
        space(tile_m=[96, 192], num_warps=[8, 64]).expand(SM90)
    message = str(error.value)
    assert "4 by tile" in message
    assert "sm_90" in message
    assert "tile_m = 96" in message


def test_an_axis_without_values_is_an_empty_space():
    with pytest.raises(EmptySpace, match="without values"):
        space(tile_m=[]).expand(SM90)


def test_an_unknown_axis_is_refused_with_the_nearest():
    with pytest.raises(BadArgument, match="did you mean 'tile_m'"):
        space(tile_mm=[64])
    with pytest.raises(BadArgument, match="did you mean 'num_stages'"):
        space(linked={("pipeline", "num_stage"): [("basic", 2)]})


def test_an_unknown_family_is_refused():
    with pytest.raises(UnknownName):
        KernelSpace("gem", {})


@pytest.mark.parametrize(
    "make",
    [
        lambda: space(linked={("tile_m",): [(64,)]}, tile_m=[64]),
        lambda: space(linked={("tile_m", "tile_n"): [(64,)]}),
        lambda: space(dtype_a=3),
        lambda: space(dtype_a=[np.str_]),
    ],
    ids=["twice", "uneven", "a number for a type", "no element type"],
)
def test_malformed_declarations_are_refused(make):
    with pytest.raises(BadArgument):
        make()


def test_lists_are_taken_for_tuples():
    (config,) = space(mma=[[16, 16, 16]]).expand(GFX942).configs
    assert config.mma == (16, 16, 16)


# --- files ------------------------------------------------------------------------------------


def write(tmp_path, document):
    path = tmp_path / "sweep.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_space_goes_to_a_file_and_back(tmp_path):
    declared = space(tile_m=[64, "*"], mma=[(0, 0, 0), (16, 16, 16)], pad_m=[True, False])
    back, notes = load_space(write(tmp_path, space_to_json(declared)), GFX942)
    assert back.expand(GFX942) == declared.expand(GFX942)
    assert notes == []


def test_what_a_file_cannot_say_is_refused():
    with pytest.raises(BadArgument, match="square"):
        space_to_json(space({"square": lambda c: True}))
    with pytest.raises(BadArgument, match="pipeline"):
        space_to_json(space(linked={("pipeline",): [("basic",)]}))


@pytest.mark.parametrize("key", ["family", "op"])
def test_the_file_names_its_family(tmp_path, key):
    path = write(tmp_path, {key: "gemm", "tile_m": [64]})
    assert load_space(path, SM90)[0].family == "gemm"
    with pytest.raises(BadFile, match=rf"\$\.{key}.*did you mean 'gemm'"):
        load_space(write(tmp_path, {key: "gemmm", "tile_m": [64]}), SM90)
    with pytest.raises(BadFile):
        load_space(write(tmp_path, {key: 3, "tile_m": [64]}), SM90)


def test_a_file_without_a_family_is_read_by_the_one_that_reads_such(tmp_path, monkeypatch):
    path = write(tmp_path, {"tile_m": [64]})
    assert load_space(path, SM90)[0].family == "gemm"
    assert [name for name in ops.families() if ops.family(name).formats.unnamed] == ["gemm"]
    monkeypatch.setattr(type(ops.family("gemm")), "formats", Formats())
    with pytest.raises(BadFile, match=r"no 'family'; it must be one of .*gemm"):
        load_space(path, SM90)
    assert load_space(path, SM90, family="gemm")[0].family == "gemm"
    with pytest.raises(BadFile, match="no axis 'problem'"):
        load_space(write(tmp_path, {"family": "gemm", "problem": {}}), SM90)


def test_the_signature_reaches_the_family(tmp_path):
    path = write(tmp_path, {"family": "gemm", "tile_m": [64]})
    declared, _ = load_space(path, SM90, signature={"dtype": "fp16", "layout": "rrr"})
    (config,) = declared.expand(SM90).configs
    assert (config.dtype_a, config.layout) == ("fp16", "rrr")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"tile_m": [64,]}', ["line 1", "column"]),
        ("[64]", ["$", "object", "list"]),
        ('{"family": "gemm", "tile_m": 1.5}', ["$.tile_m", "1.5"]),
        ('{"family": "gemm", "tile_m": [64], "tile_m": [32]}', ["tile_m", "twice"]),
        ("", ["line 1"]),
    ],
)
def test_a_bad_file_is_named_with_the_place(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(BadFile) as error:
        load_space(path, SM90)
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(BadFile, match=r"none\.json"):
        load_space(tmp_path / "none.json", SM90)


def test_one_value_may_stand_for_a_list_of_one():
    said = space(tile_m=64, pipeline="basic", pad_m=True, mma=(0, 0, 0), num_warps="*")
    listed = space(tile_m=[64], pipeline=["basic"], pad_m=[True], mma=[(0, 0, 0)], num_warps=["*"])
    assert said.expand(SM90) == listed.expand(SM90) and said.key == listed.key
    assert space(tile_m=(64 * i for i in (1, 2))).expand(SM90).configs


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (np.float16, "fp16"),
        (np.dtype("float32"), "fp32"),
        (np.int8, "int8"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "e4m3fn"),
    ],
)
def test_element_types_may_be_said_as_numpy_has_them(said, name):
    (only,) = {c.dtype_a for c in space(dtype_a=said, dtype_c=[""]).expand(SM90).configs}
    assert only == name
    assert space(dtype_a=[said]).key == space(dtype_a=[name]).key


def test_element_types_may_be_said_as_torch_has_them():
    torch = pytest.importorskip("torch")
    said = {"dtype_a": torch.bfloat16, "dtype_c": [torch.float32, torch.bfloat16]}
    assert space(**said).key == space(dtype_a=["bf16"], dtype_c=["fp32", "bf16"]).key


def test_too_many_combinations_are_an_error_with_their_number_and_cost_nothing():
    many = list(range(1, 10_000))
    vast = space(tile_m=many, tile_n=many, tile_k=many)
    with pytest.raises(BadArgument, match=r"999,700,029,999 combinations \(9999 of tile_m × 9999 "):
        vast.expand(SM90)


def test_a_dropped_combination_says_all_its_fields():
    (dropped,) = space(tile_m=[64, 96]).expand(SM90).dropped
    assert dict(dropped.fields) == {**ops.family("gemm").axes(), "tile_m": 96}


LINKED = {"family": "attention", "head_dim,mask": [[64, "none"], [128, "causal"]], "tile_q": [64]}


def test_axes_of_a_file_that_go_together(tmp_path):
    found, _ = load_space(write(tmp_path, LINKED), SM90, signature={"dtype": "fp16"})
    configs = found.expand(SM90).configs
    assert {(c.head_dim, c.mask, c.dtype) for c in configs} == {
        (64, "none", "fp16"), (128, "causal", "fp16"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"head_dim,mask": [[64]]}, r"\$\.head_dim,mask: each row is a list of 2 values, not \[64"),
        ({"head_dim,mask": []}, r"\$\.head_dim,mask: axes that go together have a list of rows"),
        ({"page_size,masks": [[64, "none"]]}, r"no axis 'masks'.*did you mean 'mask'"),
        ({"mask": ["none"]}, "axis 'mask' is declared 2 times"),
    ],
)
def test_faults_of_axes_that_go_together(tmp_path, changed, why):
    with pytest.raises(BadFile, match=why):
        load_space(write(tmp_path, {**LINKED, **changed}), SM90)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"family": "gemm", "num_warps": [{"a": 1}]}, r"\$\.num_warps: .*cannot have the value \{"),
        ({"family": "gemm", "tile_m": [[[64]]]}, r"\$\.tile_m: .*cannot have the value \[\[64\]\]"),
        ({"family": "attention", "tile_q,tile_kv": [[64, {}]]}, "no axis has the value {}"),
        (
            {"variant": "forward", "trait_config": {"pipeline": [["mem"]]}},
            r"\$\.trait_config\.pipeline: a value is a number, text, or true or false, not",
        ),
    ],
)
def test_a_value_that_no_axis_has_is_refused_with_its_place(tmp_path, document, said):
    folder = tmp_path / "grouped_conv" / "configs" if "variant" in document else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s.json").write_text(json.dumps(document))
    with pytest.raises(BadFile, match=said):
        load_space(folder / "s.json", arch("sm_90"))


def test_a_number_where_a_text_belongs_is_no_kernel():
    space = KernelSpace("attention", {"features": [5, ""]})
    found = space.expand("sm_90")
    assert len(found.configs) == 1 and found.summary() == {"expressible": 1}
    with pytest.raises(EmptySpace, match="features = 5 is no text"):
        KernelSpace("attention", {"features": [5]}).expand("sm_90")
    with pytest.raises(BadArgument, match="axis tile_m cannot have the value None"):
        KernelSpace("gemm", {"tile_m": [None]})
    with pytest.raises(BadArgument, match="axis tile_q cannot have the value"):
        KernelSpace("attention", {}, linked={("tile_q",): [({},)]})
