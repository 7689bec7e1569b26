"""How fast, how late and how large: `python -m benchmarks.worker`."""
