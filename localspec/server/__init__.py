"""HTTP for existing clients: OpenAI's, Anthropic's, Ollama's, llama-server's; and a web page.

One class answers the POST requests to every path (`form.PostEndpoint`). Each protocol has a
`Form` of its own: it reads a request's `Fields` into a `Question`, and writes the events of the
answers (`answering`) in the protocol's words. A request that needs no answer of a model is
answered by a function, a `Handler`.
"""
