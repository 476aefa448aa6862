"""The drafter service: proposers that guess the target's next tokens, and the edge that serves them."""
