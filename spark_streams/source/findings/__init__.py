"""Compare the streams and groups with the checkpoint: snapshot, diagnosis, findings, remedies."""
