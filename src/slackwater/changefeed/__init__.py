"""Change feeds of tables into files, from a client's side: windows of final rows, in files whose bytes follow from history alone.

    follow       asks a cluster for changes, decodes them, cuts them into windows and writes them; resumes where it stopped
    files        the directory: names, manifests, markers of what is final
    file_bytes   the bytes of one file
    sink         hands blocks to a destination one at a time and in order, and repeats them until they are taken

The range feeds behind it stand in `feeds/`; a change feed sees them only through the client.
"""
