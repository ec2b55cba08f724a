"""Makes both codecs of the client protocol; run by generate_protocol.py."""
