"""Experiments: data, base networks, methods, metrics and seeds, run to records that can always be added to."""
