"""Communication between ranks: collectives, who waits, bandwidth."""
