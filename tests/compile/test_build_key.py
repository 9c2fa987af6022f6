from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

import pytest
from fake_family import FakeConfig, FakeFamily

from tilewright.arch import arch
from tilewright.compile import key as key_module
from tilewright.compile.key import build_key, compiler_digest, sources_digest
from tilewright.errors import BuildFailed
from tilewright.ops.nouns import MAIN

SOURCE = FakeFamily().sources(FakeConfig(), arch("sm_90"))[MAIN]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``own`` whose kernel imports a helper, which imports another; none can run."""
    folder = tmp_path / "own"
    (folder / "deep").mkdir(parents=True)
    die = "raise SystemExit('imported')\n"
    (folder / "__init__.py").write_text(die)
    (folder / "kernel.py").write_text("import json\nimport triton\nfrom . import helper\n" + die)
    (folder / "helper.py").write_text("from own.deep.leaf import x\n" + die)
    (folder / "deep" / "__init__.py").write_text(die)
    (folder / "deep" / "leaf.py").write_text("from ..helper import y  # a cycle\nx = 1\n")
    (folder / "unrelated.py").write_text("x = 1\n")
    (tmp_path / "loose.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_sources_are_followed_without_being_imported(modules: Path) -> None:
    before = sources_digest("own.kernel")
    assert sources_digest("own.kernel") == before
    seen = {before}
    for name in ("kernel.py", "helper.py", "deep/leaf.py"):
        path = modules / name
        path.write_text(path.read_text() + "# edited\n")
        seen.add(sources_digest("own.kernel"))
    assert len(seen) == 4


def test_a_kernel_of_the_package_depends_on_few_of_its_modules() -> None:
    """One that names a package, as ``from tilewright.ops import powers`` does, depends on all that
    the package's ``__init__`` imports: each change of the house would be another kernel."""
    package = Path(key_module.__file__).parents[1]
    files = [*package.glob("*/*/kernels/*.py"), *package.glob("ops/device/*.py")]
    for file in files:
        names = {*_named(file)}
        assert not names & {"tilewright", "tilewright.ops", "tilewright.declared"}, file
    assert len(files) > 100


def _named(file: Path) -> Iterator[str]:
    """The modules that a file imports, or imports from."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_language_counts() -> None:
    arguments = ("name", SOURCE, arch("sm_90"), "0" * 64)
    in_gluon = ("name", replace(SOURCE, language="gluon"), *arguments[2:])
    assert build_key(*arguments) != build_key(*in_gluon)


def test_unrelated_source_does_not_count(modules: Path) -> None:
    before = sources_digest("own.kernel")
    (modules / "unrelated.py").write_text("x = 2\n")
    assert sources_digest("own.kernel") == before


def test_a_loose_module_beside_the_package_counts(modules: Path) -> None:
    (modules / "kernel.py").write_text("import loose\n")
    before = sources_digest("own.kernel")
    (modules.parent / "loose.py").write_text("x = 2\n")
    assert sources_digest("own.kernel") != before


def test_tilewright_helpers_count(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources_digest("own.kernel")
    (modules / "kernel.py").write_text("from tilewright.dtypes import DTYPES\n")
    assert sources_digest("own.kernel") != before
    real = key_module.sha256
    changed = (Path(key_module.__file__).parents[1] / "errors.py").read_bytes()  # dtypes' import
    before = sources_digest("own.kernel")
    monkeypatch.setattr(key_module, "sha256", lambda d: "0" if d == changed else real(d))
    monkeypatch.setattr(key_module, "_read", {})
    assert sources_digest("own.kernel") != before


def test_a_namespace_package_below_one_that_is_not_imported(modules: Path) -> None:
    (modules / "bare" / "inner").mkdir(parents=True)
    leaf = modules / "bare" / "inner" / "leaf.py"
    leaf.write_text("x = 1\n")
    (modules / "kernel.py").write_text("from own.bare.inner import leaf\n")
    before = sources_digest("own.kernel")
    leaf.write_text("x = 2\n")
    assert sources_digest("own.kernel") != before


def test_missing_and_broken_modules_say_so(modules: Path) -> None:
    with pytest.raises(BuildFailed, match=r"own\.absent cannot be found"):
        sources_digest("own.absent")
    (modules / "helper.py").write_text("def (:\n")
    with pytest.raises(BuildFailed, match=r"own\.helper does not parse"):
        sources_digest("own.kernel")


def test_every_input_changes_the_key() -> None:
    sm_90 = arch("sm_90")
    keys = [
        build_key("a", SOURCE, sm_90, "0"),
        build_key("b", SOURCE, sm_90, "0"),
        build_key("a", SOURCE, sm_90, "1"),
        build_key("a", SOURCE, arch("sm_80"), "0"),
        build_key("a", SOURCE, arch("gfx942"), "0"),
        build_key("a", replace(SOURCE, function="other"), sm_90, "0"),
        build_key("a", replace(SOURCE, options=(("num_warps", 8),)), sm_90, "0"),
        build_key("a", replace(SOURCE, constants=(("BLOCK", 1),)), sm_90, "0"),
        build_key("a", replace(SOURCE, constants=(("BLOCK", True),)), sm_90, "0"),
        build_key("a", replace(SOURCE, divisibility=()), sm_90, "0"),
        build_key("a", replace(SOURCE, pointer_range_32=("x",)), sm_90, "0"),
    ]
    assert len(set(keys)) == len(keys)
    assert build_key("a", SOURCE, sm_90, "0") == keys[0]


def test_the_compiler_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_key("a", SOURCE, arch("sm_90"), "0")
    monkeypatch.setattr(key_module, "compiler_digest", lambda: "another")
    assert build_key("a", SOURCE, arch("sm_90"), "0") != before


def test_an_edited_compiler_is_another_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "triton"
    (folder / "_C").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "_C" / "libtriton.so").write_bytes(bytes(2 << 20))  # size is not the recorded one
    origin = str(folder / "__init__.py")
    spec = ModuleSpec("triton", SourceFileLoader("triton", origin), origin=origin)
    monkeypatch.setattr(key_module, "_find", lambda name, known: spec)
    digests = [compiler_digest.__wrapped__()]
    (folder / "__init__.py").write_text("# edited\n")
    digests.append(compiler_digest.__wrapped__())
    (folder / "_C" / "libtriton.so").write_bytes(b"\1" + bytes((2 << 20) - 1))
    digests.append(compiler_digest.__wrapped__())
    assert len(set(digests)) == 3


@pytest.mark.parametrize(("version", "words"), [("3.5.1", "3.5.1 is"), ("3.10.0", "3.10.0 is")])
def test_a_triton_out_of_range_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, version: str, words: str
) -> None:
    monkeypatch.setattr(key_module.triton_versions, "installed", lambda: version)
    with pytest.raises(BuildFailed, match=rf"Triton {words} installed.* 3\.6 to 3\.9"):
        compiler_digest.__wrapped__()


def test_no_triton_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module.triton_versions, "installed", lambda: "")
    with pytest.raises(BuildFailed, match=r"triton is not installed.*pip install triton"):
        compiler_digest.__wrapped__()


def test_canonical_json_has_one_spelling() -> None:
    assert key_module.canonical({"b": (1, True), "a": "é"}) == b'{"a":"\\u00e9","b":[1,true]}\n'
    assert json.loads(key_module.canonical([1.5, None])) == [1.5, None]
