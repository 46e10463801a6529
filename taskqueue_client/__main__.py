"""`python -m taskqueue_client`."""

from taskqueue_client.cli import main

if __name__ == "__main__":
    main()
