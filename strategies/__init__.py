"""The built-in strategies, one file or folder for each system. Entry points register them, as they do plugins."""
