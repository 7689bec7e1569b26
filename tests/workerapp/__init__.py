"""An app with handlers for workers in processes of their own; see `tests.process.stage`."""
