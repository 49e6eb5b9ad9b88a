"""Files from the network: whole and checked, or absent. Only `harness data fetch` uses this room."""
