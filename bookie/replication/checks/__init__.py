"""The auditor's periodic checks: replicas, digests, placement."""
