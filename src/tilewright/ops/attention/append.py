"""What appending new keys and values leaves in the cache, and rotary embedding (Su et al.,
"RoFormer", arXiv:2104.09864), in float64, and rounded once, to what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright import arrays
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.rows import Rows, by_row, index, listed_at, place


def rotated(p: AttentionProblem, inputs: Mapping[str, Any], x: Any, places: Any) -> Any:
    """Rows of Q or of new K [rows, heads, dim] turned by the angles of `places`, an integer for
    each row; those of places that the tables do not have as they are."""
    import numpy as np

    (there,) = np.nonzero(places < p.rotary_len)
    rows, places = index(x, (there, places[there]))
    cos, sin = (inputs[name][places][:, None, :] for name in ("rotary_cos", "rotary_sin"))
    half = p.rotary_dim // 2
    if "rotaryh" in p.words:
        one, two = slice(0, half), slice(half, p.rotary_dim)
    else:
        one, two = slice(0, p.rotary_dim, 2), slice(1, p.rotary_dim, 2)
    found, x = arrays.copied(x), x[rows]
    found[rows, :, one] = x[..., one] * cos - x[..., two] * sin
    found[rows, :, two] = x[..., one] * sin + x[..., two] * cos
    return found


def query_places(p: AttentionProblem, of: Rows) -> Any:
    """The rotary place of each query: behind the keys before the new ones, one after another if a
    mask tells queries apart, else all at the first."""
    import numpy as np

    at = np.arange(of.n_q, dtype=np.int64)
    return of.before + (at if p.mask.kind != "none" else 0 * at)


def appended(
    p: AttentionProblem, inputs: Mapping[str, Any], said: Mapping[str, Any], found: Sequence[Rows]
) -> dict[str, Any]:
    """K, and V where there is one, with the new rows in them."""
    import numpy as np

    out = {}
    for name in ("k", "v") if "new_v" in inputs else ("k",):
        array = arrays.copied(inputs[name])
        view = by_row(p, name, array)
        for of in found:
            new = inputs[f"new_{name}"][of.number][: of.n_new]
            if name == "k" and p.rotary_dim:
                new = rotated(p, inputs, new, of.before + np.arange(of.n_new))
            if p.dtype_kv != p.dtype:  # rows of the cache's own dtype are scaled already
                new = new / scale_of(p, inputs, name, of, of.before, of.n_new)
            new = arrays.rounded(new, p.dtype_kv)
            outer, row = listed_at(p, said, of, of.new, of.n_new)
            # A row whose page is not in the pool is not written.
            there = (outer >= 0) & (outer < p.pages) if p.paged else outer >= 0
            at = place(p, name, outer[there], row[there])
            shape = (of.n_new, *view.shape[len(at) :])
            view[index(view, at)] = new.reshape(shape)[index(view, (there,))[0]]
        out[name] = array
    return out


def scale_of(
    p: AttentionProblem, inputs: Mapping[str, Any], name: str, of: Rows, first: int, count: int
) -> Any:
    """The scales of rows `first` to `first` + `count` of Q, K or V of a sequence: 1.0, or an array
    that broadcasts with [rows, heads, dim]. Rows of keys count from key 0."""
    import numpy as np

    if "latent" in p.words and name == "v":
        name = "k"
    scales = inputs.get(f"{name}_scale")
    if scales is None:
        return 1.0
    if "tscale" in p.words:
        return scales.reshape(1, 1, 1)
    if "hscale" in p.words:
        own = scales[of.number]
        return (_each(own, p.group) if name == "q" else own)[None, :, None]
    (blocks,) = index(scales, (np.arange(first, first + count, dtype=np.int64) // p.scale_block,))
    return scales[of.number][:, blocks].swapaxes(0, 1)[..., None]


def _each(x: Any, times: int) -> Any:
    """Each element `times` times in a row."""
    return x.repeat_interleave(times) if arrays.is_torch(x) else x.repeat(times)
