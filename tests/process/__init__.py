"""Tests with real worker processes."""
