"""The weight phase: rollouts, and what is learnt from them."""
