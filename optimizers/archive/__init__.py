"""All harnesses that were tried: records, how they are kept, how they read."""
