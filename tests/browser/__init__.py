"""The admin in a real browser, on the example project."""
