"""What a capture can and cannot carry, and what to do about it."""
