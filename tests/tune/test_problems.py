"""Problem lists: what files and shipped sets state, and what is said of bad ones."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from tune_cases import SM90

from tilewright import GemmProblem, ops
from tilewright.arch import arch
from tilewright.errors import BadFile, UnknownName
from tilewright.measure.measurement import problem_text
from tilewright.measure.problems import load_problems, sets, shipped
from tilewright.space_file import load_space


def load(path, *more, **options):
    return load_problems([path, *more], options.pop("arch", SM90), **options)


@pytest.fixture
def write(tmp_path):
    def made(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return str(path)

    return made


def test_csv_columns_are_words(write):
    path = write(
        "p.csv", "# sizes\nm, n,k,dtype,layout\n\n64,32,16,fp8,rrr\n1,2,3,,\n# more\n8,8,8,,\n"
    )
    assert load(path).problems == (
        GemmProblem(64, 32, 16, dtype_a="e4m3fn", layout="rrr"),
        GemmProblem(1, 2, 3),
        GemmProblem(8, 8, 8),
    )
    assert load(path, arch=arch("gfx942")).problems[0].dtype_a == "e4m3fnuz"


def test_json_objects_have_words_or_fields(write):
    batched = GemmProblem(64, 64, 64, batch=3)
    path = write(
        "p.json",
        [
            {"m": 64, "n": "32", "k": 16, "dtype": "fp16"},
            asdict(batched),
            json.loads(problem_text(batched)),
            {"family": "grouped_gemm", "form": "contiguous", "groups": 2, "m": 8, "n": 8, "k": 8},
        ],
    )
    found = load(path)
    grouped = ops.family("grouped_gemm").problem_type("contiguous", 2, 8, 8, 8)
    assert found.problems == (GemmProblem(64, 32, 16, dtype_a="fp16"), batched, grouped)
    assert found.repeated == 1


def test_several_files_and_words_for_all_that_leave_them_out(write):
    one = write("one.csv", "m,n,k\n8,8,8\n16,8,8\n")
    two = write("two.json", [{"m": 8, "n": 8, "k": 8, "dtype": "bf16"}, {"m": 8, "n": 8, "k": 8}])
    found = load(one, two, words={"dtype": "fp16"})
    assert [p.dtype_a for p in found.problems] == ["fp16", "fp16", "bf16"]
    assert found.repeated == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.csv", "m,n,k\n8,8,8\n8,x,8\n", r"p\.csv: line 3: n = 'x' is not a whole number"),
        ("p.csv", "# c\nm,n,k\n8,-1,8\n", r"line 3: "),
        ("p.csv", "m,n,k\n8,8,8\n8,8\n", r"line 3: 2 cells under 3 titles"),
        ("p.csv", "m,n,q\n8,8,8\n", r"line 2: a gemm problem has no 'q'"),
        ("p.csv", "m,n,n\n8,8,8\n", r"line 1: every column"),
        ("p.csv", 'm,n,k\n8,8,"8\n', r"line 2: "),
        ("p.csv", "m,n,k\n8,8,8\n8,8,\n", r"line 3: a gemm problem needs k"),
        ("p.csv", "family,m,n,k\ngem,8,8,8\n", r"line 2: no operation family 'gem'.*gemm"),
        ("p.csv", "", "no problem in it"),
        ("p.csv", "m,n,k\n", "no problem in it"),
        ("p.json", [], "no problem in it"),
        ("p.json", {"m": 8}, "problems are a list of objects"),
        ("p.json", "[\n{\"m\": 8, \"n\": 8, \"k\": 8},\n\n {\"m\": 8}]", r"line 4: .*needs n, k"),
        ("p.json", "[{\"m\": 8},\n 7]", r"line 1: "),
        ("p.json", "[\n 7]", r"line 2: a problem is an object, not 7"),
        ("p.json", '[{"m": 8, "n": 8, "k": 1.5}]', r"line 1: k = .1.5. is not a whole number"),
        ("p.json", '[{"m": 8, "n": 8, "k": 8, "batch": [0.5]}]', r"line 1: .*batch"),
        ("p.json", '[{"m": -8, "n": 8, "k": 8, "batch": [2]}]', r"line 1: "),
        ("p.json", "[{]", "line 1"),
        ("p.yml", "8 8 8", r"\.jsonl, \.py or \.txt file, or .* sets .*gemm:full, gemm:small"),
        ("p.txt", "# c\n8 8 8", r"p\.txt: line 2: .*'8' .*is no size"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(write, name, content, said):
    with pytest.raises(BadFile, match=said):
        load(write(name, content))


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(BadFile, match="cannot be read"):
        load(str(tmp_path / "none.csv"))
    (tmp_path / "b.csv").write_bytes(b"m,n,k\n\xff")
    with pytest.raises(BadFile, match="not UTF-8 at byte 6"):
        load(str(tmp_path / "b.csv"))


def test_every_family_ships_a_small_set_and_larger_ones():
    assert {f"{f}:small" for f in ops.with_a_folder()} <= {*sets()}
    larger = {name.partition(":")[0] for name in sets() if not name.endswith(":small")}
    assert larger == {*ops.with_a_folder()}


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", sets())
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942", "gfx950"])
def test_shipped_sets_fit_together(name, target):
    """Every problem has kernels, and every kernel a problem."""
    this = arch(target)
    space, notes = load_space(shipped(name, "space.json"), this)
    configs = space.expand(this).configs
    problems = load(name, arch=this).problems
    assert not notes and problems
    family = ops.family(name.partition(":")[0])
    assert {p.family for p in problems} == {family.name}
    some = problems[:: max(1, len(problems) // 20)]
    assert all(any(family.supports(c, p, this) for c in configs) for p in some)
    assert all(any(family.supports(c, p, this) for p in some) for c in configs[::7])
    if name.endswith(":small"):
        assert len(configs) <= 40 and len(problems) <= 10


def test_a_set_that_does_not_exist():
    said = r"no set or profile 'gemm:smal' \(did you mean 'gemm:small'"
    with pytest.raises(UnknownName, match=said) as raised:
        load("gemm:smal")
    assert "gemm:full" in str(raised.value) and "conv:" not in str(raised.value)
    with pytest.raises(UnknownName, match=r"did you mean 'gemm:small'.*conv:small"):
        load("gem:small")
    assert shipped("some/path:x.json", "space.json") is None
