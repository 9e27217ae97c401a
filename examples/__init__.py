"""Programs that show how source and sink are used. docs/guide names them."""
