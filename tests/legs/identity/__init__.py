"""Who connects: options, files, providers, tokens that end, certificates; and that nothing of it is ever shown."""
