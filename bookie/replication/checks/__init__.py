"""What an auditor has looked at now and then: replicas, digests, placement."""
