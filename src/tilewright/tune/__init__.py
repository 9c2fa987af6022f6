"""Which kernel is best for a problem, decided from what `tilewright.measure` measured."""
