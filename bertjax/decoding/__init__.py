"""How tokens are chosen one after the other, whatever the model: sampling, greedy, beams."""
