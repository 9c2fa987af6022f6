"""Masks beside masks of blocks, by names: words of problems of attention and of its gradients."""

MASKS = {
    "none": {},
    "causal": {"right": 0},
    "top_left": {"right": 0, "corner": "top_left"},
    "window": {"left": 40, "right": 7, "first": 5},
    "beyond": {"left": 5, "right": -3},
}
