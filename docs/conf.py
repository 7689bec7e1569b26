"""Sphinx's configuration: Markdown by MyST, the theme furo."""

from __future__ import annotations

project = "django_outbox"
author = "django_outbox contributors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "django_outbox"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nitpicky = True
