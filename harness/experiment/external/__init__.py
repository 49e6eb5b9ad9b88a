"""Records runs of other programs: runs the user's command or reads a log, and writes a record that names its origin."""
