"""What a curious server of a deployment, and someone who has its model, can find out about records: attacks to try on
one's own data.

targets.py, answers.py, inversion.py   a simulated deployment, and what its server sees of labels with few records
notes.py, reconstruct.py               how the server takes these answers apart
membership.py, statistics.py           which records a model was trained on
advice.py                              what to do about it
The attacks on the label collection are in `labels/collection`.
"""
