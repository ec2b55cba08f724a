"""What `make verify` refuses, shown by planted faults."""
