"""Found by Spark under `format("slackwater")`."""
