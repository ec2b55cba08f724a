"""One replica leads: its Lease, and the renewal of that."""
