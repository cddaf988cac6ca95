"""What pytest and its plugins expect, in tests that run on ranks."""
