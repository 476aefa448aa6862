"""Text and clients: what comes in is checked and tokenised, what goes out is text; tokens come from the targets."""
