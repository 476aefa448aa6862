"""Models: weights, tokenizers, KV slots and the packed tree pass. The only home of transformers."""
