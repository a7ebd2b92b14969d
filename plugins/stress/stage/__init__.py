"""One rank: a storage on a device, on which operations are played by the names of what they are about."""
