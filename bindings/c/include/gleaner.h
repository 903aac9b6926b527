// Gleaner: data-parallel training over slow networks.
