"""The console's pages: a module each, with its requests to the server and its values for a template."""
