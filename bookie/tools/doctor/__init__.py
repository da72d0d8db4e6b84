"""`bookgate doctor`: looks at a whole deployment through its gateways and says what to change."""
