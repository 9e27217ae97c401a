"""Tables of streams on Sail, a Spark Connect server without a JVM."""
