"""libllama, behind Python types. The only importer of llama_cpp."""
