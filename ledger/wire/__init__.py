"""The entry protocol: messages, their encodings (v2 and v3), frames, and the fast paths."""
