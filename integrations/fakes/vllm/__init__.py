"""The interfaces of vLLM that `tilewright_vllm` uses, with as little behind them as tests need.

`integrations/check.py` compares every signature here with those of vLLM's releases.
"""
