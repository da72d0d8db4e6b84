"""The entry protocol: its messages, their encodings (v2 and v3), frames, and the fast path of adds."""
