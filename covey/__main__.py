from covey.cli import entry

if __name__ == "__main__":
    entry()
