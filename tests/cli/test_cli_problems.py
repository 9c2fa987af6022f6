"""`tilewright problems`: files of problems of other libraries, and what is said of their lines."""

from __future__ import annotations

import json

import pytest

from tilewright.arch import arch
from tilewright.errors import BadFile
from tilewright.measure.problems import load_problems

MIOPEN = """\
# A comment.
./bin/MIOpenDriver convfp16 -n 1 -c 8 -H 5 -W 5 -k 8 -p 1 -q 1 -F 0
log: 3 ms ./bin/MIOpenDriver conv -n 1 -c 8 -H 5 -W 5 -k 8 -F 2
MIOpenDriver pool -n 1
MIOpenDriver conv -F 9
"""
MATMUL = """\
--reset --dt=f32,bf16 \\
  --wtag=ab,ba 3x4:4x5 # four
3x4:4x6 --reset 3x4:4x6
--batch=shapes_2d
--dt=u8:s8:f32,f32 3x4:4x5
"""


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "matmul").mkdir()
    (tmp_path / "deconv").mkdir()
    (tmp_path / "models.txt").write_text(MIOPEN)
    (tmp_path / "matmul" / "test_a").write_text(MATMUL)
    (tmp_path / "deconv" / "shapes").write_text('mb1ic8ih5oc4oh9kh3sh2ph1n"net:conv1/3x3_s2"\n')
    (tmp_path / "notes.md").write_text("not read\n")
    return tmp_path


def test_a_folder_is_counted(cli, corpus):
    found = cli.json("problems", corpus, "--arch", "gfx942")
    files = {one["file"].removeprefix(str(corpus)): one for one in found["files"]}
    assert {*files} == {"/models.txt", "/matmul/test_a", "/deconv/shapes"}
    models = files["/models.txt"]
    assert (models["lines"], models["read"], models["problems"]) == (4, 2, 4)
    assert [(one["line"], one["reason"]) for one in models["refused"]] == [
        (4, "no operation here reads MIOpenDriver 'pool'"),
        (5, "miopen: -F = '9' is not a whole number from 0 to 7"),
    ]
    matmul = files["/matmul/test_a"]
    # 4; 4, of which one is said twice; none; and one of two, which was said before.
    assert (matmul["lines"], matmul["read"], matmul["partly"]) == (4, 2, 1)
    assert matmul["problems"] == 4 + 4
    assert [one["line"] for one in matmul["refused"]] == [4, 5]
    assert files["/deconv/shapes"]["problems"] == 1
    assert (found["lines"], found["read"], found["partly"]) == (9, 5, 1)
    text = cli("problems", corpus)
    assert text.startswith("5 of 9 lines read, 1 in part: 13 different problems")
    assert "models.txt:4" in text and "no operation here reads MIOpenDriver" in text


def test_a_file_that_is_no_text_costs_no_other_file(cli, corpus):
    (corpus / "blob").write_bytes(b"\xff\x00\x80")
    found = cli.json("problems", corpus)
    assert (found["lines"], found["read"]) == (9, 5)
    (blob,) = [one for one in found["files"] if one["file"].endswith("blob")]
    assert blob["problems"] == 0 and "blob" in blob["refused"][0]["reason"]


def test_what_was_read_is_a_list_for_other_commands(cli, corpus, tmp_path):
    out = tmp_path / "out.json"
    counted = cli.json("problems", corpus, "--out", out)
    rows = json.loads(out.read_text())
    assert {row["family"] for row in rows} == {"conv", "gemm"}
    again = cli.json("problems", out)
    assert (again["read"], again["problems"]) == (len(rows), counted["problems"])
    made = cli.json("problems", out, "--out", tmp_path / "again.json")
    assert made["problems"] == len(rows)
    assert (tmp_path / "again.json").read_text() == out.read_text()


def test_a_list_that_is_used_drops_no_line(corpus, tmp_path):
    with pytest.raises(BadFile, match=r"models.txt: line 4: no operation .* MIOpenDriver 'pool'"):
        load_problems([corpus / "models.txt"], arch("sm_90"))
    file = tmp_path / "two.txt"
    file.write_text("conv -F 0\nconv -F 1\n")
    found = load_problems([file], arch("sm_90"))
    assert (len(found.problems), found.repeated) == (3, 1)


def test_a_space_may_have_any_name(cli, corpus, space):
    (corpus / "kernels").write_text(space.read_text())
    assert cli.json("expand", corpus / "kernels", "--arch", "sm_90")[0]["legal"] == 2


def test_what_cannot_be_read(cli, corpus, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.txt").write_text("# nothing\n")
    for words, why in (
        ([corpus / "notes.md"], "problems are in a .json"),
        ([corpus / "missing.txt"], "missing.txt"),
        ([tmp_path / "none.txt"], "no problem in"),
        ([tmp_path / "empty"], "no file of command lines"),
        ([corpus, "--out", tmp_path / "a.csv"], "a .json file"),
    ):
        assert why in cli.fails(2, "problems", *words)
