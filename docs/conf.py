"""How Sphinx builds the documentation: `make docs` writes it to build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "_extensions")]

from phalanx import __version__  # noqa: E402

project = "Phalanx"
author = "The Phalanx authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "command_line"]
exclude_patterns = ["_extensions"]
nitpicky = False

# Docstrings say `name` for code, as Markdown does.
default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
python_display_short_literal_types = True

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_title = f"Phalanx {release}"
html_static_path = ["_static"]
html_css_files = ["phalanx.css"]
html_copy_source = False
html_show_sphinx = False
smartquotes = False
pygments_style = "friendly"
highlight_language = "none"
