"""Operations that are declared, each in a page: a module that has its operation's name.

A page states operands, axes and the reference (`tilewright.custom.Declaration`), as a user's own
file does, and imports no Triton. Its kernels stand in the folder ``kernels`` beside it.

rows: norms, softmax, losses, gates and rotations of rows. routing: tokens to experts.
shape: elements moved or cast. sums: reductions and pooling. attention: of other weights than a
softmax's. What several pages use has a name that begins with ``_``.
"""
