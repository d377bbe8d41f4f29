"""Speed and agreement on real text: what is asked, who answers, and what came of it."""
