"""Where the models of a pair go before they are loaded: their memory, layers and devices."""
