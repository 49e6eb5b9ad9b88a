"""The site: `make docs` builds it from the pages of the repository, and treats broken links as errors.

The source folder is the repository itself, so pages are not copied, and a link to README.md or to a page of
benchmarks/results is a link between two pages of the site.
"""

from harness import __version__

project = "Parallel GNN Harness"
author = "The Parallel GNN Harness authors"
version = release = __version__
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "config/README.md", "benchmarks/results/*.md"]
exclude_patterns = [".*", "build", "datasets", "results", "figures"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # measurements are headed by their scripts
default_role = "code"  # a name in a docstring stands between single backticks
autodoc_inherit_docstrings = False  # those of torch have references of their own
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
highlight_language = "text"  # a block of commands has comments in it and no prompts

html_theme = "furo"
html_title = project
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
