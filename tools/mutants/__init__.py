"""Which small faults in the code the tests notice: a sample of mutants from every room.

A mutant is the package with one place changed: another comparison, a number more or less by one, a
statement left out. It is killed if a test fails because of it. `__main__.py` says how
to run it; the files, in the order of the work:

    rooms       which files belong to which room
    changes     the mutants of a file
    places      where a value that is made at import is used
    weave       the text of a file that holds all mutants of the sample, each behind a switch
    probe       the switch, and a note of each place that ran; also in child processes
    tree        a copy of the repository with the woven files
    plugin      pytest's side: which tests run which mutants, and the tests of one mutant in a fork
    outcomes    what became of each mutant; the document, and the table

Why own code: mutmut and cosmic-ray start pytest for each mutant, which costs a minute of collection
here. A fork of a process that has collected costs a second. Neither sees what child processes run
(the interpreter, the command line), which the switch does.
"""
