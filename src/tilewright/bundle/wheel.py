"""A bundle as its own wheel: data only, which pip installs and dispatchers find.

The wheel holds one file, ``tilewright_kernels/<what>.bundle``, and its metadata. Dates and order
are fixed, so the same bundle gives the same bytes with the same zlib; the wheel's files, unlike the
bundle's own, are compressed with Python's zlib.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from pathlib import Path

from tilewright.bundle.bundle import PACKAGE
from tilewright.bundle.layout import LICENSE
from tilewright.bundle.write import Content, licence
from tilewright.errors import BadArgument
from tilewright.files import write_whole
from tilewright.version import __version__

PREFIX = "tilewright-kernels-"
_DATE = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(rf"{PREFIX}([a-z0-9]+(?:-[a-z0-9]+)*)", re.ASCII)


def write_wheel(content: Content, name: str, folder: Path) -> Path:
    """Write the wheel called `name` (``tilewright-kernels-sm90``) into `folder`, whole or not at
    all. Returns its path. The wheel has the version of this Tilewright, and requires exactly this
    version. Raises `BadArgument` for another form of name, `StoreError`."""
    said = _NAME.fullmatch(name)
    if said is None:
        raise BadArgument(f"'{name}' is no name of a wheel of kernels, as {PREFIX}sm90")
    _, bundle = content.to_bytes()
    stem = f"{name.replace('-', '_')}-{__version__}"
    files = {
        f"{PACKAGE}/{said[1]}.bundle": bundle,
        f"{stem}.dist-info/licenses/{LICENSE}": licence(),
        f"{stem}.dist-info/METADATA": _metadata(name, len(content)).encode(),
        f"{stem}.dist-info/WHEEL": _WHEEL.encode(),
    }
    record = f"{stem}.dist-info/RECORD"
    listed = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join([*listed, f"{record},,", ""]).encode()
    target = folder.absolute() / f"{stem}-py3-none-any.whl"
    write_whole(target, _zipped(files))
    return target


_WHEEL = """\
Wheel-Version: 1.0
Generator: tilewright
Root-Is-Purelib: true
Tag: py3-none-any
"""


def _metadata(name: str, kernels: int) -> str:
    return f"""\
Metadata-Version: 2.4
Name: {name}
Version: {__version__}
Summary: {kernels} prebuilt GPU kernels for Tilewright.
License-Expression: Apache-2.0
License-File: {LICENSE}
Requires-Python: >=3.10,<3.14
Requires-Dist: tilewright=={__version__}
"""


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for path, data in files.items():
            info = zipfile.ZipInfo(path, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = 0o644 << 16
            file.writestr(info, data)
    return target.getvalue()
