"""What every instruction means: a module for each kind.

Importing this package fills the table of `registry`.
"""

from tilewright.emulate.isa import control as control
