"""Programs of others: run by a command of the user's, or read from their logs, into tables that tell them apart."""
