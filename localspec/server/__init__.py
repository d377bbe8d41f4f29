"""HTTP for existing clients: OpenAI's, Anthropic's, Ollama's, llama-server's; and a web page.

A POST is answered by one endpoint (`form`). A protocol is a `Form`: it is made of a request's
`Fields`, has one `Question`, and writes the events of `answering` in its own way. A request
that needs no answer of a model is a `Handler`.
"""
