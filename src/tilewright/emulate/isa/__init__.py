"""What every instruction means: a module for each kind.

Importing this package fills the table of `registry`.
"""

from tilewright.emulate.isa import atomics as atomics
from tilewright.emulate.isa import buffers as buffers
from tilewright.emulate.isa import compare as compare
from tilewright.emulate.isa import control as control
from tilewright.emulate.isa import convert as convert
from tilewright.emulate.isa import division as division
from tilewright.emulate.isa import dot as dot
from tilewright.emulate.isa import ds as ds
from tilewright.emulate.isa import dual as dual
from tilewright.emulate.isa import floats as floats
from tilewright.emulate.isa import globals as globals
from tilewright.emulate.isa import integer as integer
from tilewright.emulate.isa import lanes as lanes
from tilewright.emulate.isa import matrix as matrix
from tilewright.emulate.isa import modes as modes
from tilewright.emulate.isa import packed as packed
from tilewright.emulate.isa import relative as relative
from tilewright.emulate.isa import scalar as scalar
from tilewright.emulate.isa import scalar_floats as scalar_floats
from tilewright.emulate.isa import scalar_memory as scalar_memory
from tilewright.emulate.isa import waiting as waiting
from tilewright.emulate.isa import wide as wide
