"""The main job, for a stranger to run: `make demo`, or `slackwater demo`.

    three nodes, three processes, three regions      a shop with 200 000 rows          customers who never stop buying
    ───────────────────────────────────────────      ──────────────────────────        ────────────────────────────────
    n1 region=eu ─┐                                  wallets   150 000 customers        every purchase moves money from a
    n2 region=us ─┼─ one ordered log                 tills      50 000 shops            wallet to a till and notes an order,
    n3 region=ap ─┘                                  orders    one a purchase           in one transaction

    shop        the tables, the purchases, what must hold of them
    processes   nodes started, killed and restarted by process id
    steps       what is shown, one function a step; each returns checks that held or did not
    spark_steps the same through Spark
    picture     closed-timestamp lag per range over time, as SVG
    screen      lines and tables on the terminal
    command     the arguments, and the order of it all

Two things must hold at *every* timestamp, and every step that reads checks them where it read:

    money    sum of all wallets + sum of all tills = what was there at the beginning
    orders   sum of all tills = what was in them at the beginning + sum of all orders

The demo sees the product from outside only: the command line, the client, Spark. It exits 0 only if every check held.
"""
