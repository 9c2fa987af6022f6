"""A sweep's results as one page that needs no network: `write`.

`gather` takes from a results file what the page shows; `render` puts it into the page, whose
structure, looks and behaviour are in page.html, page.css and page.js.
"""

from tilewright.report.data import gather
from tilewright.report.page import Written, render, write

__all__ = ["Written", "gather", "render", "write"]
