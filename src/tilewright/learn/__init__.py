"""Learned selection: from measurements to models, and how good these are."""
