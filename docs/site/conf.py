"""Sphinx settings of the site that ``make docs`` builds. Every warning is an error there.

The pages stay where a reader of the repository finds them, and link to each other by path: Sphinx
reads from the repository's root. A link to a file that is no page (a script, a result) becomes a
download of that file.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tilewright
from navigation import PAGES

project = "Tilewright"
copyright = "The Tilewright authors"
release = tilewright.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated"]
root_doc = "README"
include_patterns = PAGES
exclude_patterns = [".*", "build"]  # not walked

myst_heading_anchors = 4  # as a forge makes them
suppress_warnings = ["misc.highlighting_failure"]  # `…` in an example is not JSON

default_role = "code"  # in docstrings `x` is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = False  # it reads a function's source, which no operation's signature is
maximum_signature_line_length = 80  # longer ones get a line for each parameter
smartquotes = False  # `--arch` is no dash

html_theme = "furo"
html_title = f"Tilewright {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to_first_page.html"}  # the first page is README.html
templates_path = ["templates"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
