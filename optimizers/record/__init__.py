"""What a run leaves on disk: its directory, journal and ledgers."""
