"""Named values that kernels in Gluon pass on as one: Triton's aggregates, of Triton 3.6 to 3.9."""

from triton.language.core import _aggregate, base_value

from tilewright.ops.device.gluon_api import constexpr_function, gl


def bundle(name, fields):
    """A type of named values that kernels pass on as one. Constants among them stay constants; a
    tuple turns them into tensors.

    fields: names, with spaces between them. A kernel calls the type with a value for each. What a
        partition of warps uses comes to it through shared memory, in the order of the fields.
    """
    names = tuple(fields.split())
    made = {"__annotations__": dict.fromkeys(names, base_value), "__init__": _fill}
    found = _aggregate(type(name, (), made))
    found.fields = names
    return found


@constexpr_function
def _fill(self, *values):
    for name, value in zip(type(self).fields, values, strict=True):
        setattr(self, name, value if isinstance(value, base_value) else gl.constexpr(value))
