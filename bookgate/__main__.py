"""`python -m bookgate`: the command `bookgate`, also where it is not on the path."""

from bookgate.thinclient.commands.entry import main

if __name__ == "__main__":
    main()
