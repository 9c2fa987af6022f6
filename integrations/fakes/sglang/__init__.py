"""The interfaces of SGLang that `tilewright_sglang` uses, with as little behind them as tests need.

`integrations/check.py` compares every signature here with those of SGLang's releases.
"""
