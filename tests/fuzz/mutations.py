"""Valid inputs with something wrong in them: a value, a place, a byte. The same each time."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
from random import Random
from typing import Any

WORDS = (
    "", " ", "*", "-1", "0", "1", "64", "nan", "inf", "1e999", "5e-324", "1" + "0" * 400,
    "9" * 5000, "-" * 50, "\0", "\n", "é", "\u202e", "a" * 3000, "../../etc/passwd", "=cmd", "true",
    "None", "x",
    "fp8", "bf16", "gemm", "grouped_gemm", "sm_90", "rcr", "list", "basic", "bias+gelu", "1x128",
    "+".join(["bias"] * 500), "64x64x64", "(", "\"", ",", "torch.int8", "2**31",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 3, 16, 64, 255, 2**31 - 512, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63),
    10**18, 0.0, -0.0, 1.5, -1.5, 5e-324, 1e-7, 1e300, 1.7e308,
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], [1, 2, 3], {"values": [1]}, {"min": 1, "max": 9999,
          "step": 1}, ["*"], [None])  # fmt: skip
TOKENS = (
    "1e999", "-1e999", "NaN", "-Infinity", "1" + "0" * 400, "9" * 5000, "1e-400", "01", "",
    "[" * 60 + "]" * 60, "[" * 200 + "]" * 200, "[" * 30_000, '{"a":' * 90 + "1" + "}" * 90,
    '{"a": 1, "a": 2}', r'"\ud800"', r'"\ud83d\ude00"', r'"\u0000"', "'x'", "-",
)  # fmt: skip
"""What JSON text may have and a Python value cannot."""

_TOKEN = re.compile(r'"@token:(\d+)@"')


def value(random: Random) -> Any:
    """Something that is probably not meant."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice(NUMBERS)
    if kind < 5:
        return random.choice(WORDS)
    if kind < 7:
        return copy.deepcopy(random.choice(OTHERS))
    return f"@token:{random.randrange(len(TOKENS))}@"


def tree(document: Any, random: Random) -> Any:
    """A copy of a document of lists and dictionaries with one to three things changed."""
    changed = [copy.deepcopy(document)]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = [(changed, 0), *_places(changed[0])]
        holder, key = random.choice(places) if random.randrange(20) else places[0]
        _change(holder, key, places, random)
        if not changed:
            changed = [value(random)]
    return changed[0]


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a document."""
    found: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        one = left.pop()
        keys = [*one] if isinstance(one, dict) else []
        for key in keys or range(len(one) if isinstance(one, list) else 0):
            found.append((one, key))
            left.append(one[key])
    return found


def _change(holder: Any, key: Any, places: list[tuple[Any, Any]], random: Random) -> None:
    old, how = holder[key], random.randrange(9)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif how == 1:
        word = str(key)
        cut = random.randrange(len(word) + 1)
        holder[random.choice((word[:cut] + word[cut + 1 :], word + "_", random.choice(WORDS)))] = (
            old
        )
    elif how == 2:
        other, place = random.choice(places)
        holder[key] = copy.deepcopy(other[place])
    elif how == 3 and isinstance(old, int | float):
        holder[key] = random.choice((-old, old + 1, old * 10, old - 1, float(old), str(old)))
    elif how == 3 and isinstance(old, bytes):
        holder[key] = raw(old, random)
    elif how == 4 and isinstance(old, str) and old:
        cut = random.randrange(len(old))
        holder[key] = old[:cut] + random.choice(WORDS) + old[cut + random.randrange(3) :]
    elif how == 5 and isinstance(old, list) and old:
        holder[key] = old * random.choice((2, 100))
    elif isinstance(old, bytes) and how < 8:
        holder[key] = raw(old, random)
    else:
        holder[key] = value(random)


def dumped(document: Any) -> bytes:
    """A document as JSON, tokens in their places."""

    def token(found: re.Match[str]) -> str:
        known = len(found[1]) < 4 and int(found[1]) < len(TOKENS)  # or a mutation is in it
        return TOKENS[int(found[1])] if known else found[0]

    return _TOKEN.sub(token, json.dumps(document)).encode()


def json_text(document: Any, random: Random) -> bytes:
    """A document as JSON with something wrong: nearly always a value, sometimes a byte."""
    text = dumped(tree(document, random))
    return raw(text, random) if random.randrange(12) == 0 else text


def json_lines(documents: list[Any], random: Random) -> bytes:
    """A JSON text a line, one of them wrong, or the lines themselves."""
    lines = [dumped(one) for one in documents]
    place = random.randrange(len(lines))
    lines[place] = json_text(documents[place], random)
    if random.randrange(8) == 0:
        random.shuffle(lines)
    return b"\n".join(lines) + random.choice((b"\n", b"", b"\n\n"))


def csv_text(text: str, random: Random) -> bytes:
    """A CSV with something wrong in a cell, a line or a byte."""
    rows = list(csv.reader(io.StringIO(text)))
    for _ in range(random.choice((1, 1, 2))):
        row = random.choice(rows)
        how = random.randrange(8)
        if how < 4 and row:
            row[random.randrange(len(row))] = random.choice(WORDS)
        elif how == 4 and row:
            del row[random.randrange(len(row))]
        elif how == 5:
            row.append(random.choice(WORDS))
        elif how == 6:
            rows.append([*row])
        elif row:
            row[0] = "8" * 140_000
    out = io.StringIO()
    try:
        csv.writer(out).writerows(rows)
    except csv.Error:  # a NUL, which some versions of Python do not write
        return text.encode() + b"\0"
    found = out.getvalue().encode()
    return raw(found, random) if random.randrange(6) == 0 else found


def raw(data: bytes, random: Random) -> bytes:
    """Bytes with some of them changed, cut, repeated or put between."""
    at = random.randrange(len(data) + 1)
    how = random.randrange(6)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    if how == 2:
        return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]
    if how == 3:
        return data[:at] + data[at + random.randrange(1, 9) :]
    if how == 4:
        return (
            data[:at]
            + random.choice((b"\xff", b"\0" * 8, b"\xff" * 8, b"\xef\xbb\xbf"))
            + data[at + 8 :]
        )
    return data[at:] + data[:at]


def words(text: str, random: Random) -> str:
    """A word with another in it, or with characters changed."""
    at = random.randrange(len(text) + 1)
    how = random.randrange(5)
    if how == 0:
        return text[:at] + random.choice(WORDS) + text[at:]
    if how == 1:
        return text[:at] + text[at + random.randrange(1, 9) :]
    if how == 2:
        numbers = [*re.finditer(r"\d+", text)]
        if numbers:
            one = random.choice(numbers)
            said = random.choice((*(str(n) for n in NUMBERS), "9" * 5000, ""))
            return text[: one.start()] + said + text[one.end() :]
    if how == 3:
        return (
            text[:at] + chr(random.choice((0, 9, 10, 0xD800, 0x660, 0x1F600, 43, 45))) + text[at:]
        )
    parts = re.split(r"([_=+,;x ])", text)
    random.shuffle(parts)
    return "".join(parts)


def lines(text: str, random: Random) -> str:
    """A text with something wrong in one or two of its lines."""
    found = text.split("\n")
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(found))
        how = random.randrange(8)
        if how == 0:
            del found[at]
        elif how == 1:
            found.insert(at, random.choice(found))
        elif how == 2:
            found[at] = random.choice(found)
        elif how == 3:
            found[at] = raw(found[at].encode(), random).decode(errors="replace")
        else:
            found[at] = words(found[at], random)
        if not found:
            return ""
    return "\n".join(found)


def cell(old: Any, random: Random) -> Any:
    """Another value for a cell of a database."""
    if isinstance(old, str) and old[:1] == "{" and random.randrange(3):
        return json_text(json.loads(old), random).decode(errors="replace")
    if isinstance(old, bytes) and random.randrange(2):
        return raw(old, random)
    new = random.choice((*NUMBERS, *WORDS, b"", b"\xff" * 8, None, 9e999))
    return float(new) if isinstance(new, int) and abs(new) >= 2**63 else new
