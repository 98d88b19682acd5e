"""`python -m fedalc` is the command `fedalc`: what `torchrun -m fedalc` starts."""

from __future__ import annotations

from fedalc.cli.main import main

if __name__ == "__main__":
    main()
