"""`python -m sits_cli` is `sits`."""

from sits_cli.main import main

if __name__ == "__main__":
    main()
