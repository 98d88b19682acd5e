collect_ignore = ["poison"]  # for the processes of one party, not for this one
