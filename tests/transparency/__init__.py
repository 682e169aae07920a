"""Each training runs plainly and traced; nothing that a user can see may differ."""
