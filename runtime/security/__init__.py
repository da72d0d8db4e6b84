"""Who calls (principals, authenticators) and what they may do (policy, decision): the same for every door."""
