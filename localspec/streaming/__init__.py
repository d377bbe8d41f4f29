"""Steps of the loop to pieces of text and a reply."""
