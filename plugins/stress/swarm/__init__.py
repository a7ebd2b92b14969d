"""Random operations on two ranks, every promise checked after each, and what breaks shrunk to a case."""
