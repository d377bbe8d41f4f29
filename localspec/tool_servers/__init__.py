"""Servers of tools that speak MCP, the Model Context Protocol."""
