"""What a record of drawn attention says of cuDNN's first engine beside the estimate's choice.

    python benchmarks/attention_counted.py
    python benchmarks/attention_counted.py --from whole.json.xz    # write the record

Needs no GPU. Of the draw that choices may be counted from it prints `engine_record.RECORD`: the
classes with two problems and more in all of which the engine was faster. Of the other draw, which
took no part, it prints the time of the fastest of cuDNN over that of the estimate's choice, and
over that of what the rule answers: mean, P10, least.

--from: what `run.py 'attention-whole*' --json` wrote. Run it on the commit of the run: the record
gets the names of the kernels that the estimate chooses.
"""

from __future__ import annotations

from functools import partial

from cases.attention_unseen import whole
from engines_counted import RESULTS, Draw
from tilewright.arch import device
from tilewright.ops.attention import engine_record

UNITS = device("h200_sxm").compute_units
DRAW = Draw(
    whole, RESULTS / "attention_whole_h200.json", 2,
    partial(engine_record.class_of, units=UNITS), engine_record.RECORD,
)  # fmt: skip

if __name__ == "__main__":
    DRAW.main(__doc__)
