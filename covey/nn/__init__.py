"""Networks, optimisers and statistics: what agents are built of."""
