"""What `bookgate security init` makes: an authority, certificates, tokens, a policy and settings for a trial."""
