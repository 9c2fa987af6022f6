"""The page: one file that contains its looks, its behaviour and its data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tilewright.errors import BadArgument
from tilewright.files import replacing
from tilewright.measure.results import Results
from tilewright.printable import printable
from tilewright.report.data import gather

_MARK = re.compile(r"@@(\w+)@@")


@dataclass(frozen=True, slots=True)
class Written:
    """The file that was written.

    bytes: its size.
    setups, measurements, problems, kernels: how much it shows, over all setups (a setup is a
        device, an environment and settings).
    """

    path: Path
    bytes: int
    setups: int
    measurements: int
    problems: int
    kernels: int


def write(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> Written:
    """Write the page of the results in `folder` to `path`, whole or not at all.

    Raises `BadFile` (no results there, none in them, damaged, of a newer version) and `BadArgument`
    (`path` cannot be written).
    """
    with Results(folder) as results:
        data = gather(results)
    page = render(data).encode()
    put(Path(path), page)
    setups = data["setups"]
    return Written(
        path=Path(path),
        bytes=len(page),
        setups=len(setups),
        measurements=sum(len(s["cells"]) - s["cells"].count(".") for s in setups),
        problems=len({p["name"] for s in setups for p in s["problems"]}),
        kernels=len({name for s in setups for name in s["kernels"]}),
    )


def render(data: Mapping[str, Any]) -> str:
    """The page that shows `data` (see `gather`). Its content security policy forbids fetching
    anything and running any script but its own."""
    script = part("page.js")
    known = hashlib.sha256(script.encode()).digest()
    parts = {
        "title": html.escape(printable(f"Tilewright: {data['folder']}")),
        "policy": base64.b64encode(known).decode(),
        "style": part("page.css"),
        "data": _embedded(data),
        "script": script,
    }
    return _MARK.sub(lambda mark: parts[mark[1]], part("page.html"))


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser can take for markup, whatever its strings contain."""
    said = json.dumps(_cleaned(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&":
        said = said.replace(sign, f"\\u{ord(sign):04x}")
    return said


def _cleaned(value: Any) -> Any:
    """`data` with its strings made `printable`: some characters make browsers write from right to
    left."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _cleaned(one) for key, one in value.items()}
    return [*map(_cleaned, value)] if isinstance(value, list | tuple) else value


def part(name: str) -> str:
    """The text of a file of this room."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def put(path: Path, page: bytes) -> None:
    """Write a page, whole or not at all. Raises `BadArgument` if `path` cannot be written; the page
    of before is then still there."""
    try:
        if path.is_dir():
            raise BadArgument(f"{path} cannot be written: it is a folder; name a file in it")
        with replacing(path) as file:
            file.write(page)
    except OSError as error:
        raise BadArgument(f"{path} cannot be written: {error.strerror}") from error
