"""Preshuffled weights: lay B out once as the matrix units read it, and use it many times."""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng()
weight = rng.standard_normal((96, 128)).astype(np.float32)  # of a Linear layer: [out, in]

shuffled = tw.shuffle(weight.T)  # once; B is [in, out]
print(f"B of {weight.T.shape} is now {shuffled.shape}")
assert (tw.unshuffle(shuffled) == weight.T).all()

for rows in (1, 4, 16):  # a step of decoding has few
    x = rng.standard_normal((rows, 128)).astype(np.float32)
    assert np.allclose(tw.gemm(x, shuffled), x @ weight.T, atol=1e-3)
print("the dispatcher tells a shuffled B by its four dimensions")

problem = tw.GemmProblem(1, 4096, 4096, layout="rsr")
print(tw.Dispatcher().select(problem).config.name)

plain = "gemm_rcr_fp32_fp32_fp32_fp32_64x64x32_w4_s2_basic_tile_g8_direct_padmnk_al16"
try:
    tw.Dispatcher().run_named(plain, x, shuffled)
except tw.TilewrightError as error:
    print(str(error).partition("signature: ")[2])
