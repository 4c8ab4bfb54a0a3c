"""Training and evaluation of members: the only place, with `population`, where programs are compiled."""
