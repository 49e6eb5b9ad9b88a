"""Results: the records that runs leave on disk, and the tables made of the records. No training, no drawing."""
