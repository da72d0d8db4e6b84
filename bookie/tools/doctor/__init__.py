"""`bookgate doctor`: examines a whole deployment through its gateways and says what to change."""
