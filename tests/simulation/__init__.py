"""A simulation of the whole gateway: one seed drives clock, network, disk, database and chance around the real parts."""
