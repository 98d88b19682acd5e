"""Engine `flower`: clients are parties of their own, reached over the network by Flower.

party.py, client_app.py            a party's side
roster.py, collecting.py           who takes part, and what the server learns of their labels
exchange.py, replies.py, screening.py   messages out and replies in; which replies are refused
strategy.py, measuring.py          one round: the engine; evaluation at the parties
training.py, run_config.py, server_app.py   the run, from its settings to its folder
records.py                         what travels, and how it is checked on arrival
"""
