"""The awaiting side of closing: streams between nodes (`streams`), and all schemes of a node behind one interface (`schemes`)."""
