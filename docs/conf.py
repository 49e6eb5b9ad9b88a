"""The site: `make docs` builds it from the pages in docs/, and treats broken links as errors.

Pages of the repository outside docs/ are part of the site too, without being copied: docs/evidence/measurements is a
link to benchmarks/results, and three pages include README.md, CHANGELOG.md and CONTRIBUTING.md. Links between pages are
those that a code host follows; `point_to_pages` replaces targets outside docs/ by the pages of the site.
"""

import os
import re
from pathlib import Path
from typing import Any

from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

from harness import FUNCTIONS, __version__

project = "Parallel GNN Harness"
author = "The Parallel GNN Harness authors"
version = release = __version__
root_doc = "index"
include_patterns = ["**.md"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # measurements are headed by their scripts
default_role = "code"  # a name in a docstring stands between single backticks
autodoc_inherit_docstrings = False  # those of torch have references of their own
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
smartquotes = False  # in prose `--set` keeps its hyphens
highlight_language = "text"  # a block of commands has comments in it and no prompts

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

REPOSITORY = Path(__file__).parent.parent
MEASUREMENTS = "evidence/measurements"
PAGES = {"README": "index", "CHANGELOG": "develop/changelog", "CONTRIBUTING": "develop/contributing"}
"""The pages of the site that include a file of the repository."""


FUNCTIONS_HERE = "<!-- the functions of harness -->"


def list_functions(_: Sphinx, __: str, content: list[str]) -> None:
    """Document the functions of `import harness`, wherever they are defined."""
    directives = "\n".join(f".. autofunction:: {module}.{name}" for name, module in FUNCTIONS.items())
    content[0] = content[0].replace(FUNCTIONS_HERE, f"```{{eval-rst}}\n{directives}\n```")


def rebase_links(app: Sphinx, path: Path, _: str, content: list[str]) -> None:
    """Make the relative links of an included file independent of the page that includes it."""
    folder = os.path.relpath(Path(app.srcdir, path).resolve().parent, app.srcdir)
    content[0] = re.sub(r"\]\((?![a-z]+:|#|/)", f"](/{folder}/", content[0])


def point_to_pages(_: Sphinx, doctree: document) -> None:
    """Point links to files outside docs/ at the pages of the site that show them."""
    for link in doctree.findall(pending_xref):
        path = Path(link["reftarget"])
        if link["refdomain"] == "doc" and path.is_relative_to(REPOSITORY):
            name = str(path.relative_to(REPOSITORY))
            link["reftarget"] = PAGES.get(name, name.replace("benchmarks/results", MEASUREMENTS))


def leave_out_of_sidebar(app: Sphinx, _: document) -> None:
    """Leave the measurements out of the sidebar: docs/evidence/measurements.md lists them."""
    if app.env.docname.startswith(MEASUREMENTS + "/"):
        app.env.metadata[app.env.docname]["orphan"] = True


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", list_functions)
    app.connect("include-read", rebase_links)
    app.connect("doctree-read", point_to_pages)
    app.connect("doctree-read", leave_out_of_sidebar)
    return {"parallel_read_safe": True}
