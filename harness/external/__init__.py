"""Other programs: run by the user's own command or read from their logs, into records that name their origin."""
