"""What an epoch should take on a machine that a card describes, before anything runs there."""
