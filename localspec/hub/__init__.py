"""Files of the Hugging Face hub: what it says of them, downloads, and where they are kept.

Other programs' stores of models are read, too. `api` is the only importer of huggingface_hub.
"""
