"""An HTTP server that existing clients speak to: their protocols over one engine at a time."""
