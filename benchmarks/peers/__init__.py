"""The same work through django_outbox and its peers, side by side: `python -m benchmarks.peers`."""
