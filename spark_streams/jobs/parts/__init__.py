"""The parts of which the programs in jobs/ are composed. Most take one table of a configuration."""
