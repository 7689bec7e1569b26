"""Tests with inputs that nobody has thought of. `--hypothesis-profile=wide` looks further."""
