"""Looking at streams and groups without changing them."""
