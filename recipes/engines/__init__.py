"""Engines: how each opens a capture window, names its steps, is told apart."""
