"""Engine `flower`: the clients are parties on other machines, reached over the network with Flower.

client_app.py, questions.py, work.py        a party's answers, and how it reads and checks what it is asked
party.py, limits.py, party_memory.py        its data, and what it accepts
contributions.py, influence.py              its local work, without labels to which too few records contribute
server_app.py, run_config.py, training.py   a run at the server, from its settings to its folder
take_census.py, admission.py, roster.py     which parties take part, and what the server learns about their labels
engine.py, totals.py, measuring.py          one round of training; evaluation at the parties
connections.py, exchange.py, punctuality.py which parties are connected; messages out, replies in; late parties
wire.py, answers.py, norm_screen.py         the messages, and how they are checked on arrival
held_out.py                                 the server's own evaluation data
"""
