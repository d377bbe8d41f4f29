"""MCP servers, whose tools a model may call: configured, started, connected, ended."""
