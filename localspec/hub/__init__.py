"""Files of the Hugging Face hub: what it says of them, fetched, verified, kept in its cache."""
