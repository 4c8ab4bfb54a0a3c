"""Networks, critics, distributions, optimisers and running statistics: the parts that agents are built from."""
