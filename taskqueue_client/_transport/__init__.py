"""The transports: network settings, sessions, and the code that both clients share."""
