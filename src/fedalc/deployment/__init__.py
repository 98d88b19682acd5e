"""A deployment on Flower: parties and a server on machines of their own, started, watched and ended from here."""
