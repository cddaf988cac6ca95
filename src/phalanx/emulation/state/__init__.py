"""What a rank has of its own although ranks share a process.

Two ways: state that Python code reads (`os.environ`) is looked up by the calling thread; state
inside torch and the interpreter (`sys.argv`, what C code sees of the environment) is swapped
when another rank gets the baton. One module for each kind; the baton calls `switcher.py`.
"""
