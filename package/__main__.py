"""`python -m to_fsdp2`: the command."""

from to_fsdp2.migrate.__main__ import main

if __name__ == "__main__":
    main()
