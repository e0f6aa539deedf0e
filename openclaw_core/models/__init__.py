"""Facts about models, and the megatron modules made from them."""
