"""Files from the network: whole and the right ones, or not there. Only `harness data fetch` comes here."""
