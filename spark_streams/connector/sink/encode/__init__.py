"""From Arrow record batches to chunks of XADD commands."""
