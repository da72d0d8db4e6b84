"""The output of `bookgate security init`: an authority, certificates, tokens, a policy and settings for a trial."""
