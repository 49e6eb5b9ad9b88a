"""The workflow: the studies, graph builds and paper figures behind the rules of workflows/. No module loads torch."""
