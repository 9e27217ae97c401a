"""Lines over time: the history of a server and the logs of queries, and where a page draws them."""
