"""Submissions: archives of recorded runs, which others verify without repeating the runs."""
