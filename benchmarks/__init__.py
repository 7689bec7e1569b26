"""How fast, how late and how large: `worker` and `timers`, each run with `python -m`."""
