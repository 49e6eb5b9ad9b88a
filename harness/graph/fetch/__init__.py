"""Downloads files, completely and verified or not at all. Only `harness data fetch` uses this package."""
