"""Writes a sweep's results as one page that needs no network: `write`.

`gather` reads the data of the page from a results file. `render` puts the data into the page, whose
structure, looks and behaviour are in page.html, page.css and page.js.
"""

from tilewright.report.data import gather
from tilewright.report.page import Written, render, write

__all__ = ["Written", "gather", "render", "write"]
