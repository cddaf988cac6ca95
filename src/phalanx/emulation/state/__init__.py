"""What a rank has of its own although ranks share a process.

State that Python code reads (`os.environ`) is looked up by the calling thread. State inside
torch and the interpreter (`sys.argv`, the environment that C code sees) is swapped when another
rank gets the baton. One module for each kind; the baton calls `switcher.py`.
"""
