"""What a record of drawn convolutions says of cuDNN's first engine beside the estimate's choice.

    python benchmarks/conv_counted.py
    python benchmarks/conv_counted.py --from unseen.json.xz first.json.xz    # write the record

Needs no GPU. Of the half of the layers that rules are counted from it prints
`engine_record.RECORD`: the classes with `LEAST` problems and more in all of which the engine was
faster. Of the other half, which took no part, it prints the time of the fastest of cuDNN over that
of the estimate's choice, and over that of what the rule answers: mean, P10, least.

--from: what `run.py 'conv-unseen*' 'conv-first*' --json` wrote; a later file's problems replace an
earlier one's. Run it on the commit of the run: the record gets the names of the kernels that the
estimate chooses.
"""

from __future__ import annotations

from cases.conv import unseen
from engines_counted import RESULTS, Draw
from tilewright.ops.conv import engine_record

LEAST = 3
"""Of two problems one class was counted, forward 1×1 in one dimension, channels-first: for the four
such layers of another draw the fastest of cuDNN takes 1.08 to 1.49 times as long as the choice
(results/unseen_h200.json)."""
DRAW = Draw(
    unseen, RESULTS / "conv_unseen_h200.json", LEAST, engine_record.class_of, engine_record.RECORD
)

if __name__ == "__main__":
    DRAW.main(__doc__)
