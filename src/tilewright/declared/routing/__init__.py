"""Tokens to experts: choosing the largest, and sorting rows by expert."""
