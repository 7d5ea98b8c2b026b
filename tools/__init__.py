"""What makes, fetches and tests things around the pack; the recipes themselves never import it."""
