"""Random lives of commands: queries, clients and `rstream` commands on one server, killed and interrupted anywhere.

What a command does is read from the server before and after each of its requests, and compared with what it said."""
