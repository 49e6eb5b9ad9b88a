"""Packs: archives of the recorded runs of a group, which others verify without repeating the runs."""
