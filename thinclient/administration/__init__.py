"""What an operator's program does with a cluster: bookies, garbage collection, auto-recovery, replicas."""
