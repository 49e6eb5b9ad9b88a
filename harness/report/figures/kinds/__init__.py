"""The kinds of figures. Each module defines one: its frame, its mark, and its caption."""
